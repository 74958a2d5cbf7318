"""Labelled crops as training reads them."""
