"""The laboratory: published benchmarks and our own, the methods that they compare, and their reports."""
