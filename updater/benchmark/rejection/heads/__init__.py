"""Heads that are fitted on frozen embeddings for rejection, one method a file."""
