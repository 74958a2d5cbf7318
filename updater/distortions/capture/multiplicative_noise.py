"""Each value times a factor about 1, anew in each frame."""

import numpy as np

from updater.filters import Picture, to_picture

SDS = (0.05, 0.1, 0.15, 0.22, 0.3)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Scale the values of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's factors."""
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        grain = rng.standard_normal(frame.shape, dtype=np.float32)
        noisy[number] = to_picture(frame * (1 + np.float32(SDS[level - 1]) * grain))
    return noisy
