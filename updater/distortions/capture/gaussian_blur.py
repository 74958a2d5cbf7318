"""A Gaussian, cut off at three standard deviations."""

import numpy as np

from updater.filters import Picture, gaussian, to_picture

SIGMAS_PX = (0.8, 1.2, 1.8, 2.5, 3.5)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Blur uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    return to_picture(gaussian(frames.astype(np.float32), SIGMAS_PX[level - 1]))
