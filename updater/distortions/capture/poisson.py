"""Photon noise: counts of so many photons at white, anew in each frame."""

import numpy as np

from updater.filters import Picture, to_picture

PHOTONS = (2000, 800, 300, 120, 50)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Count photons in place of uint8 RGB [T, H, W, 3]; level 1..5. Draws each frame's counts."""
    photons_a_level = PHOTONS[level - 1] / 255
    counted = np.empty_like(frames)
    for number, frame in enumerate(frames):
        counts = rng.poisson(frame * photons_a_level).astype(np.float32)
        counted[number] = to_picture(counts / np.float32(photons_a_level))
    return counted
