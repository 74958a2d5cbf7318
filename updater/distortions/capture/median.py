"""The median of a square neighbourhood."""

import numpy as np
from PIL import Image, ImageFilter

from updater.filters import Picture, to_picture
from updater.filters import median as median_of_nine

SIDES_PX = (3, 3, 5, 7, 9)
TWICE = 2
"""The level that has its filter applied twice."""


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Smooth uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    side = SIDES_PX[level - 1]
    if side == SIDES_PX[0]:
        pixels = median_of_nine(frames.astype(np.float32))
        return to_picture(median_of_nine(pixels) if level == TWICE else pixels)
    window = ImageFilter.MedianFilter(side)
    return np.stack([np.asarray(Image.fromarray(frame).filter(window)) for frame in frames])
