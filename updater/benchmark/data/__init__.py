"""What the benchmarks run on: one directory layout a file, all of them to tasks in their order."""
