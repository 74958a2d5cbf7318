"""Single pixels black or white, others in each frame."""

import numpy as np

from updater.filters import Picture

SHARES = (0.002, 0.005, 0.01, 0.02, 0.05)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Strike pixels of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's pixels."""
    struck = frames.copy()
    for frame in struck:
        chance = rng.random(frame.shape[:2], dtype=np.float32)
        frame[chance < SHARES[level - 1]] = 255
        frame[chance < SHARES[level - 1] / 2] = 0
    return struck
