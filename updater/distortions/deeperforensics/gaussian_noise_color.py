"""GNC of DeeperForensics-1.0: white noise of one strength on Y, Cb and Cr."""

import numpy as np

from updater.distortions.deeperforensics.ycbcr import Planes, to_rgb, to_ycbcr
from updater.filters import Picture

VARIANCES = (0.001, 0.002, 0.005, 0.01, 0.05)
"""Of a full scale of 1."""


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Add noise to uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's, standard normal [H, W, 3]."""
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        noisy[number] = add(frame, rng.standard_normal(frame.shape, dtype=np.float32), level)
    return noisy


def add(frame: Picture, noise: Planes, level: int) -> Picture:
    """Add standard normal noise of Y, Cb, Cr, float32 [H, W, 3], at a level's strength to uint8 RGB."""
    scale = np.float32(255)
    planes = to_ycbcr(frame) / scale + np.float32(np.sqrt(VARIANCES[level - 1])) * noise
    return to_rgb(planes * scale).clip(0, 255).astype(np.uint8)
