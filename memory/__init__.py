"""Unknowns are kept: rows, crops, index, clusters, labels, shelves."""
