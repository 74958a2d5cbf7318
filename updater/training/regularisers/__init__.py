"""Changes to a training step that are said to help rejection, one a file."""
