"""Data of the benchmarks: directory layouts as tasks in their order, and kept crops."""
