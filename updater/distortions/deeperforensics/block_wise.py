"""BW of DeeperForensics-1.0: grey blocks of 8 × 8, laid anew in each frame."""

import numpy as np
from numpy.typing import NDArray

from updater.filters import Picture

COUNTS = (16, 32, 48, 64, 80)
"""Blocks for each whole 256 pixels of the shorter side; a smaller frame gets none."""
SIDE_PX = 8
GREY = 128


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Cover parts of uint8 RGB [T, H, W, 3]; level 1..5. Draws the corners of each frame."""
    height, width = frames.shape[1:3]
    count = COUNTS[level - 1] * (min(height, width) // 256)
    covered = frames.copy()
    for frame in covered:
        cover(frame, rng.integers(0, (height - SIDE_PX, width - SIDE_PX), (count, 2)) if count else ())
    return covered


def cover(frame: Picture, corners: NDArray[np.int64] | tuple[()]) -> None:
    """Lay a grey block at each upper left corner (row, column) of uint8 [H, W, 3], in place."""
    for row, column in corners:
        frame[row : row + SIDE_PX, column : column + SIDE_PX] = GREY
