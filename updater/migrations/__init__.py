"""How databases get from one layout to the next; a revision a file below versions/, in SQL terms alone."""
