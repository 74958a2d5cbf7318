"""JPEG of Pillow's default tables and subsampling."""

import numpy as np

from updater.filters import Picture, to_picture
from updater.filters import jpeg as code

QUALITIES = (60, 45, 30, 20, 12)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code each frame of uint8 RGB [T, H, W, 3] and decode it; level 1..5. Draws nothing."""
    return to_picture(code(frames.astype(np.float32), QUALITIES[level - 1]))
