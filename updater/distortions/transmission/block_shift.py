"""Blocks of the 16 px grid with what lies within 32 px of them in their place, others in each frame."""

import numpy as np

from updater.filters import Picture

SHARES = (0.01, 0.02, 0.04, 0.08, 0.15)
SIDE_PX = 16
REACH_PX = 32


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Misplace blocks of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's blocks and their sources."""
    height, width = frames.shape[1:3]
    rows, columns = height // SIDE_PX, width // SIDE_PX
    shifted = frames.copy()
    for frame, source in zip(shifted, frames, strict=True):
        for row, column in np.argwhere(rng.random((rows, columns)) < SHARES[level - 1]) * SIDE_PX:
            down, across = rng.integers(-REACH_PX, REACH_PX + 1, 2)
            top = int(np.clip(row + down, 0, height - SIDE_PX))
            left = int(np.clip(column + across, 0, width - SIDE_PX))
            block = source[top : top + SIDE_PX, left : left + SIDE_PX]
            frame[row : row + SIDE_PX, column : column + SIDE_PX] = block
    return shifted
