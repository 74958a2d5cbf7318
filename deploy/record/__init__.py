"""One record of what people do in every room, in one hash chain, and its published heads."""
