"""Diagnosis of a stack, with a remedy for each problem."""
