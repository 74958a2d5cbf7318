"""CS of DeeperForensics-1.0: chroma times a factor about its middle, the luma kept."""

import numpy as np

from updater.distortions.deeperforensics.ycbcr import to_rgb, to_ycbcr
from updater.filters import Picture

FACTORS = (0.4, 0.3, 0.2, 0.1, 0.0)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Fade the colours of uint8 RGB [T, H, W, 3]; level 1..5, the last is grey. Draws nothing."""
    middle, factor = np.float32(0.5), np.float32(FACTORS[level - 1])
    planes = to_ycbcr(frames)
    planes[..., 1:] = middle + (planes[..., 1:] - middle) * factor
    return to_rgb(planes).clip(0, 255).astype(np.uint8)
