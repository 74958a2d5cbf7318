"""Dead letters as people see them: read, found, and sent once more."""
