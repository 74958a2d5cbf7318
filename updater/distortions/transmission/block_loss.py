"""Blocks of the 8 px grid that never came: grey, others in each frame."""

import numpy as np

from updater.filters import Picture

SHARES = (0.002, 0.005, 0.01, 0.02, 0.04)
SIDE_PX = 8
GREY = 128


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Lose blocks of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's blocks."""
    height, width = frames.shape[1:3]
    rows, columns = -(-height // SIDE_PX), -(-width // SIDE_PX)
    kept = frames.copy()
    for frame in kept:
        lost = rng.random((rows, columns)) < SHARES[level - 1]
        frame[lost.repeat(SIDE_PX, 0).repeat(SIDE_PX, 1)[:height, :width]] = GREY
    return kept
