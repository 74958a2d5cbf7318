"""The networks of ForgeryNet's and DeeperForensics' benchmarks, by name."""
