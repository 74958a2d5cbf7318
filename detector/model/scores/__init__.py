"""The scores of the gate, one a file: `fit(reference)` gives the score of a network's output."""
