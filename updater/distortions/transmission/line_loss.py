"""Rows that never came show the row above, other ones in each frame."""

import numpy as np

from updater.filters import Picture

SHARES = (0.01, 0.02, 0.04, 0.08, 0.15)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Repeat rows of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's rows. The first is never lost."""
    height = frames.shape[1]
    repeated = np.empty_like(frames)
    for number, frame in enumerate(frames):
        came = np.where(rng.random(height) < SHARES[level - 1], 0, np.arange(height))
        repeated[number] = frame[np.maximum.accumulate(came)]
    return repeated
