"""Each channel raised or lowered, not all three alike."""

import numpy as np

from updater.filters import Picture, to_picture

STEPS = (5, 10, 18, 28, 40)
_SIGNS = np.array([(1, 1, -1), (1, -1, 1), (1, -1, -1), (-1, 1, 1), (-1, 1, -1), (-1, -1, 1)], np.float32)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Tint uint8 RGB [T, H, W, 3]; level 1..5. Draws the three signs for all frames."""
    return to_picture(frames.astype(np.float32) + STEPS[level - 1] * rng.choice(_SIGNS))
