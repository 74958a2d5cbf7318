"""Smaller and back by the nearest pixel."""

import numpy as np
from PIL import Image

from updater.filters import Picture, resize, to_picture

FACTORS = (1.5, 2, 3, 4, 5)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Rescale uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    height, width = frames.shape[1:3]
    factor = FACTORS[level - 1]
    low, narrow = max(1, round(height / factor)), max(1, round(width / factor))
    small = resize(frames.astype(np.float32), low, narrow, Image.Resampling.NEAREST)
    return to_picture(resize(small, height, width, Image.Resampling.NEAREST))
