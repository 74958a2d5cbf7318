"""Each row moved sideways by whole pixels of its own, anew in each frame."""

import numpy as np
from numpy.typing import NDArray

from updater.filters import Picture

REACH_PX = (1, 2, 3, 5, 8)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Move the rows of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's rows; edges repeat."""
    return _moved(rng, frames, level)


def move(rng: np.random.Generator, maps: Picture, level: int) -> Picture:
    """Move the rows of maps, uint8 [T, H, W], as the same draw moves frames."""
    return _moved(rng, maps, level)


def _moved(rng: np.random.Generator, stack: Picture, level: int) -> Picture:
    height, width = stack.shape[1:3]
    rows: NDArray[np.int64] = np.arange(height)[:, None]
    moved = np.empty_like(stack)
    for number, one in enumerate(stack):
        shifts = rng.integers(-REACH_PX[level - 1], REACH_PX[level - 1] + 1, (height, 1))
        moved[number] = one[rows, np.clip(np.arange(width) + shifts, 0, width - 1)]
    return moved
