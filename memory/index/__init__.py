"""FAISS over whitened features: a cache that is rebuilt from the rows."""
