"""The channels in another order, one of the five at each level."""

import numpy as np

from updater.filters import Picture

ORDERS = ((0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1))


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Reorder the channels of uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    return np.ascontiguousarray(frames[..., ORDERS[level - 1]])
