"""Pseudo-forgeries: outliers made at random from known media."""
