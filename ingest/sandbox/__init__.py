"""Hostile media become crops in child processes that may do next to nothing."""
