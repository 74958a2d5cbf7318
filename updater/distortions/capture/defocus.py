"""A disc, as of a lens out of focus."""

import numpy as np
from scipy.signal import oaconvolve

from updater.filters import Picture, Pixels, to_picture

RADII_PX = (2, 3, 4, 6, 8)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Blur uint8 RGB [T, H, W, 3] by a disc; level 1..5. Draws nothing."""
    radius = RADII_PX[level - 1]
    disc = _disc(radius)
    blurred = np.empty_like(frames)
    edges = [(radius, radius), (radius, radius), (0, 0)]
    for number, frame in enumerate(frames):
        padded = np.pad(frame.astype(np.float32), edges, mode="reflect")
        blurred[number] = to_picture(oaconvolve(padded, disc[..., None], "valid", axes=(0, 1)))
    return blurred


def _disc(radius_px: int) -> Pixels:
    """A disc with a soft edge of a pixel, float32 [2 radius_px + 1] squared, of sum 1."""
    across = np.arange(-radius_px, radius_px + 1)
    distance = np.hypot(across[:, None], across[None])
    disc = np.clip(radius_px + 0.5 - distance, 0, 1).astype(np.float32)
    disc /= disc.sum()
    return disc
