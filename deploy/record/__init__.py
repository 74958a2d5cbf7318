"""One record of people's acts in every room, in one hash chain, and its published heads."""
