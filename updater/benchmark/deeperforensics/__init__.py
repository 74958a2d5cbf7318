"""DeeperForensics-1.0's benchmark: what a detector of forged videos keeps of its accuracy when distorted."""
