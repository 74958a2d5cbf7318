"""Continual learners, a method or two that are kin a file, and the file of a trained network."""
