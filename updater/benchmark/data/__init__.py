"""What the benchmarks run on: directory layouts as tasks in their order, and crops that are kept."""
