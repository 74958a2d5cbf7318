"""ForgeryNet's fourth task: the stretches of a video that are forged, by several methods."""
