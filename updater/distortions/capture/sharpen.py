"""An unsharp mask: a share of what a Gaussian of σ 1 px takes away is added."""

import numpy as np

from updater.filters import Picture, gaussian, to_picture

SHARES = (0.5, 1, 1.5, 2.2, 3)
SIGMA_PX = 1.0


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Sharpen uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    pixels = frames.astype(np.float32)
    return to_picture(pixels + np.float32(SHARES[level - 1]) * (pixels - gaussian(pixels, SIGMA_PX)))
