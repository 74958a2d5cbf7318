"""The two published benchmarks and the project's own stream: their results and how these are shown."""
