"""JPEG 2000 with irreversible wavelets, at a ratio of sizes."""

import numpy as np

from updater.distortions.compression.stills import through
from updater.filters import Picture

RATIOS = (20, 35, 55, 80, 120)
_MOST_RESOLUTIONS = 6  # the standard's usual number; each halves the sides


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code each frame of uint8 RGB [T, H, W, 3] and decode it; level 1..5. Draws nothing."""
    resolutions = min(_MOST_RESOLUTIONS, min(frames.shape[1:3]).bit_length())
    return through(
        frames,
        "JPEG2000",
        irreversible=True,
        quality_mode="rates",
        quality_layers=[RATIOS[level - 1]],
        num_resolutions=resolutions,
    )
