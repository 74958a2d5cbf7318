"""Forensic features, each a torch module that is exported inside the graph."""
