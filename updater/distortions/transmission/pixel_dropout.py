"""Single pixels black, others in each frame."""

import numpy as np

from updater.filters import Picture

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Drop pixels of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's pixels."""
    kept = frames.copy()
    for frame in kept:
        frame[rng.random(frame.shape[:2], dtype=np.float32) < SHARES[level - 1]] = 0
    return kept
