"""Levels spread about their frame's mean, or drawn to it."""

import numpy as np

from updater.filters import Picture, to_picture

FACTORS = (1.15, 1.3, 1.5, 1.8, 2.2)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Spread or narrow uint8 RGB [T, H, W, 3]; level 1..5. Draws which of the two for all frames."""
    factor = np.float32(FACTORS[level - 1] ** rng.choice((-1, 1)))
    pixels = frames.astype(np.float32)
    mean = pixels.mean(axis=(1, 2, 3), keepdims=True)
    return to_picture(mean + factor * (pixels - mean))
