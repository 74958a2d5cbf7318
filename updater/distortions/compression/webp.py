"""Lossy WebP."""

import numpy as np

from updater.distortions.compression.stills import through
from updater.filters import Picture

QUALITIES = (50, 35, 22, 12, 5)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code each frame of uint8 RGB [T, H, W, 3] and decode it; level 1..5. Draws nothing."""
    return through(frames, "WEBP", quality=QUALITIES[level - 1])
