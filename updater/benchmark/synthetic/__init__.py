"""The demonstration's own media: scenes, a simulated camera, photographs, forgery families."""
