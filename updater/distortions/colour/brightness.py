"""All levels raised, or all lowered."""

import numpy as np

from updater.filters import Picture, to_picture

STEPS = (10, 20, 30, 45, 60)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Brighten or darken uint8 RGB [T, H, W, 3]; level 1..5. Draws the sign for all frames."""
    return to_picture(frames.astype(np.float32) + np.float32(STEPS[level - 1] * rng.choice((-1, 1))))
