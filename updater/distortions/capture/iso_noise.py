"""Noise of a sensor at high gain: on the luma, and more of it on the two chromas; anew in each frame."""

import numpy as np

from updater.filters import Picture, to_picture

LUMA_SDS = (3, 6, 10, 15, 22)
"""Standard deviations in levels."""
CHROMA_SHARE = 1.5
# ITU-R BT.601: what a level of Y, Cb, Cr adds to R, G, B
_TO_RGB = np.array([[1, 1, 1], [0, -0.344136, 1.772], [1.402, -0.714136, 0]], np.float32)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Add noise to uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's noise."""
    luma = LUMA_SDS[level - 1]
    sds = np.array([luma, CHROMA_SHARE * luma, CHROMA_SHARE * luma], np.float32)
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        grain = rng.standard_normal(frame.shape, dtype=np.float32)
        noisy[number] = to_picture(frame + (grain * sds) @ _TO_RGB)
    return noisy
