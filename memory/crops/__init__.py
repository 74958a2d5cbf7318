"""Crops and frames, kept by their content."""
