"""Post-hoc rejection scores, one method a file: `fit(known)` gives the score of fresh evidence."""
