"""Distortions of pictures and clips: the seven of DeeperForensics-1.0, and 36 of our own for ForgeryNet."""
