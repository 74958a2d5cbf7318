"""JPEG twice: first at a low quality, then at a high one whose grid lies four pixels on."""

import numpy as np

from updater.filters import Picture, jpeg, to_picture

QUALITIES = (70, 55, 45, 35, 25)
SECOND_QUALITY = 90
GRID_MOVED_PX = 4


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code each frame of uint8 RGB [T, H, W, 3] and decode it, twice; level 1..5. Draws nothing."""
    once = jpeg(frames.astype(np.float32), QUALITIES[level - 1])
    return to_picture(jpeg(once, SECOND_QUALITY, GRID_MOVED_PX, GRID_MOVED_PX))
