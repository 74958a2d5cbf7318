"""A random smooth field that moves each place a little."""

import numpy as np
from scipy.ndimage import gaussian_filter

from updater.distortions.capture.displacement import Field, displaced
from updater.filters import Picture

REACHES_PX = (1, 2, 3, 4.5, 6)
"""How far the place moves that moves the farthest down, and the one that moves the farthest sideways."""
SIGMA_PX = 10


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Bend uint8 RGB [T, H, W, 3]; level 1..5. Draws the field for all frames."""
    return displaced(frames, _field(rng, frames.shape[1], frames.shape[2], level))


def move(rng: np.random.Generator, maps: Picture, level: int) -> Picture:
    """Bend maps, uint8 [T, H, W], as the same draw bends frames."""
    return displaced(maps, _field(rng, maps.shape[1], maps.shape[2], level))


def _field(rng: np.random.Generator, height: int, width: int, level: int) -> Field:
    rough = rng.standard_normal((2, height, width))
    smooth: Field = gaussian_filter(rough, (0, SIGMA_PX, SIGMA_PX), mode="mirror")
    smooth *= REACHES_PX[level - 1] / np.abs(smooth).max(axis=(1, 2), keepdims=True)
    return smooth
