"""Levels to a power, or to its inverse."""

import numpy as np

from updater.filters import Picture, to_picture

EXPONENTS = (1.2, 1.4, 1.7, 2.1, 2.6)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Bend the tone of uint8 RGB [T, H, W, 3]; level 1..5. Draws which of the two for all frames."""
    exponent = EXPONENTS[level - 1] ** rng.choice((-1.0, 1.0))
    curve = to_picture((255 * (np.arange(256) / 255) ** exponent).astype(np.float32))
    return curve[frames]
