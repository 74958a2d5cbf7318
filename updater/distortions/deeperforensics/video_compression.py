"""VC of DeeperForensics-1.0: H.264 (libx264, preset medium) at a constant rate factor."""

import numpy as np

from updater.distortions.media.h264 import through_h264
from updater.filters import Picture

RATE_FACTORS = (30, 32, 35, 38, 40)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code uint8 RGB [T, H, W, 3] as one clip and decode it; level 1..5. Draws nothing."""
    return through_h264(frames, RATE_FACTORS[level - 1])
