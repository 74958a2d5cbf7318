"""Rejection: post-hoc scores by what they read, and heads that are trained on frozen embeddings."""
