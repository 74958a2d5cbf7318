"""The upper bits of each level alone."""

import numpy as np

from updater.filters import Picture

BITS = (6, 5, 4, 3, 2)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Coarsen the levels of uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    return frames & np.uint8(256 - 2 ** (8 - BITS[level - 1]))
