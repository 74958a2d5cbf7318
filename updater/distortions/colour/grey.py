"""Mixed with its own luma."""

import numpy as np

from updater.distortions.colour.luma import luma
from updater.filters import Picture, to_picture

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Grey uint8 RGB [T, H, W, 3]; level 1..5, the last is grey. Draws nothing."""
    pixels = frames.astype(np.float32)
    return to_picture(pixels + np.float32(SHARES[level - 1]) * (luma(pixels) - pixels))
