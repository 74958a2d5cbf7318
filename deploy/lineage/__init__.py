"""From a verdict back to its labels and their authors, and from a label on to the releases trained on it."""
