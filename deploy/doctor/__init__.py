"""What is wrong with a stack, and what to do about it."""
