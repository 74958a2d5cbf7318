"""White noise on each channel, anew in each frame."""

import numpy as np

from updater.filters import Picture, to_picture

SDS = (4, 8, 13, 20, 30)
"""Standard deviations in levels."""


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Add noise to uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's noise."""
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        grain = rng.standard_normal(frame.shape, dtype=np.float32)
        noisy[number] = to_picture(frame + np.float32(SDS[level - 1]) * grain)
    return noisy
