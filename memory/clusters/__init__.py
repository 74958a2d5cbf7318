"""Unknowns that are alike, as a person reviews them."""
