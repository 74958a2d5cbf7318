"""What the memory costs at size, and what a shift test can find."""
