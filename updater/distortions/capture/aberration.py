"""Lateral chromatic aberration: red moved one way, blue the other; green stays."""

import numpy as np

from updater.distortions.capture.displacement import Field, displaced
from updater.filters import Picture

SHIFTS_PX = (0.5, 1, 1.5, 2.5, 4)
_RED, _BLUE = 0, 2


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Part the colours of uint8 RGB [T, H, W, 3]; level 1..5. Draws the direction for all frames."""
    field = _field(rng, frames.shape[1], frames.shape[2], level)
    parted = frames.copy()
    parted[..., _RED] = displaced(frames[..., _RED], field)
    parted[..., _BLUE] = displaced(frames[..., _BLUE], -field)
    return parted


def move(rng: np.random.Generator, maps: Picture, level: int) -> Picture:
    """Widen maps, uint8 [T, H, W]: a pixel is forged as far as the most forged of its three colours."""
    field = _field(rng, maps.shape[1], maps.shape[2], level)
    return np.maximum(maps, np.maximum(displaced(maps, field), displaced(maps, -field)))


def _field(rng: np.random.Generator, height: int, width: int, level: int) -> Field:
    angle = rng.uniform(0, 2 * np.pi)
    shift = SHIFTS_PX[level - 1] * np.array([np.sin(angle), np.cos(angle)])
    return np.broadcast_to(shift[:, None, None], (2, height, width))
