"""The plane of Cb and Cr (ITU-R BT.601) turned about its middle."""

import numpy as np

from updater.filters import Picture, to_picture

DEGREES = (5, 10, 18, 30, 60)
_TO_YCBCR = np.array(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float64
)


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Turn the hues of uint8 RGB [T, H, W, 3]; level 1..5. Draws the sign for all frames."""
    angle = np.deg2rad(DEGREES[level - 1]) * rng.choice((-1, 1))
    cosine, sine = np.cos(angle), np.sin(angle)
    turn = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
    whole = np.linalg.inv(_TO_YCBCR) @ turn @ _TO_YCBCR
    return to_picture(frames.astype(np.float32) @ whole.T.astype(np.float32))
