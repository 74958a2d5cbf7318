"""CC of DeeperForensics-1.0: levels times a factor, cut to whole levels.

The paper calls it contrast. It darkens, for nothing is held in the middle.
"""

import numpy as np

from updater.filters import Picture

FACTORS = (0.85, 0.725, 0.6, 0.475, 0.35)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Darken uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    return (frames.astype(np.float32) * np.float32(FACTORS[level - 1])).astype(np.uint8)
