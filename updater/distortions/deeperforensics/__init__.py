"""The seven distortions of DeeperForensics-1.0, to the arithmetic of its published code."""
