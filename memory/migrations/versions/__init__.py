"""Revisions, each written once and never changed after it has landed."""
