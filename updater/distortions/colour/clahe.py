"""Contrast-limited adaptive histogram equalisation, by scikit-image."""

import numpy as np

from updater.filters import Picture, to_picture

CLIPS = (0.005, 0.01, 0.02, 0.03, 0.05)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Equalise each frame of uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    # An extra of its own: nothing else here needs it.
    from skimage.exposure import equalize_adapthist

    equal = [equalize_adapthist(frame, clip_limit=CLIPS[level - 1]) for frame in frames]
    return to_picture(np.stack(equal).astype(np.float32) * 255)
