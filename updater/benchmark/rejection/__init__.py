"""Rejection: post-hoc scores by their input, and heads that are trained on frozen embeddings."""
