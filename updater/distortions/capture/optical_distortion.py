"""The radial distortion of a lens: x' = x (1 + k r²), r = 1 in the corners; barrel or cushion."""

import numpy as np

from updater.distortions.capture.displacement import Field, displaced
from updater.filters import Picture

STRENGTHS = (0.03, 0.06, 0.1, 0.15, 0.22)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Bend uint8 RGB [T, H, W, 3]; level 1..5. Draws the sign for all frames."""
    return displaced(frames, _field(rng, frames.shape[1], frames.shape[2], level))


def move(rng: np.random.Generator, maps: Picture, level: int) -> Picture:
    """Bend maps, uint8 [T, H, W], as the same draw bends frames."""
    return displaced(maps, _field(rng, maps.shape[1], maps.shape[2], level))


def _field(rng: np.random.Generator, height: int, width: int, level: int) -> Field:
    strength = STRENGTHS[level - 1] * rng.choice((-1, 1))
    down = np.arange(height)[:, None] - (height - 1) / 2
    across = np.arange(width)[None] - (width - 1) / 2
    corner = max(1.0, np.hypot(height - 1, width - 1) / 2)
    bend = strength * (down**2 + across**2) / corner**2
    return np.stack([down * bend, across * bend])
