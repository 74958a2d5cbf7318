"""Each pixel from a place near by, as through frosted glass."""

import numpy as np

from updater.filters import Picture

REACHES_PX = (1, 1, 2, 3, 4)
PASSES = (1, 2, 1, 2, 2)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Scatter the pixels of uint8 RGB [T, H, W, 3]; level 1..5. Draws the places for all frames."""
    height, width = frames.shape[1:3]
    reach = REACHES_PX[level - 1]
    scattered = frames
    for _ in range(PASSES[level - 1]):
        down, across = rng.integers(-reach, reach + 1, (2, height, width))
        rows = np.clip(np.arange(height)[:, None] + down, 0, height - 1)
        columns = np.clip(np.arange(width) + across, 0, width - 1)
        scattered = scattered[:, rows, columns]
    return scattered
