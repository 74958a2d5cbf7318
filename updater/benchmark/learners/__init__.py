"""Continual learners, one method a file."""
