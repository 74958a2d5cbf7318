"""Colours drawn to their luma; at the last level, away from it."""

import numpy as np

from updater.distortions.colour.luma import luma
from updater.filters import Picture, to_picture

FACTORS = (0.7, 0.5, 0.3, 0.15, 2.5)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Fade the colours of uint8 RGB [T, H, W, 3], or at level 5 raise them; level 1..5. Draws nothing."""
    pixels = frames.astype(np.float32)
    grey = luma(pixels)
    return to_picture(grey + np.float32(FACTORS[level - 1]) * (pixels - grey))
