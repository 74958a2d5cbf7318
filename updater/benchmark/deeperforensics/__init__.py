"""DeeperForensics-1.0's benchmark: the accuracy of a detector of forged videos under distortions."""
