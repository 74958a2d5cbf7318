"""Random masks of a part of a picture: where a pseudo-forgery, or a forgery of the synthetic stream, lies."""

from typing import NamedTuple

import numpy as np

from updater.filters import Picture, Pixels, to_picture

AREA = (0.04, 0.35)
EDGE_PX = (0.6, 2.0)
_RATIO = 0.5


class Forged(NamedTuple):
    """A forged picture, and the truth of it."""

    picture: Picture
    """uint8 [H, W, 3]"""
    mask: Pixels
    """float32 [H, W, 1] in 0..1: how much of each pixel is forged"""


def random_mask(
    rng: np.random.Generator, height: int, width: int, share: tuple[float, float] = AREA
) -> Pixels:
    """Draw a soft mask, float32 [height, width, 1] in 0..1: half of the time an ellipse, else a rectangle.

    It covers that share of the area, from the least to the most, anywhere in the picture; its edge is 0.6 to
    2 px wide.
    """
    area = rng.uniform(*share) * height * width
    ratio = float(np.exp(rng.uniform(-_RATIO, _RATIO))) * height / width
    edge_px = float(rng.uniform(*EDGE_PX))
    y = np.arange(height, dtype=np.float32)[:, None] + 0.5
    x = np.arange(width, dtype=np.float32)[None] + 0.5
    if rng.random() < 0.5:
        tall, wide = np.sqrt(area / np.pi * ratio), np.sqrt(area / np.pi / ratio)
        tilt = rng.uniform(0, np.pi)
        cosine, sine = float(np.cos(tilt)), float(np.sin(tilt))
        down, across = np.hypot(tall * cosine, wide * sine), np.hypot(tall * sine, wide * cosine)
        y, x = y - _middle(rng, height, float(down)), x - _middle(rng, width, float(across))
        u, v = (y * cosine + x * sine) / float(tall), (x * cosine - y * sine) / float(wide)
        inside_px = (1 - np.hypot(u, v)) * float(min(tall, wide))
    else:
        tall, wide = np.sqrt(area * ratio) / 2, np.sqrt(area / ratio) / 2
        y, x = y - _middle(rng, height, float(tall)), x - _middle(rng, width, float(wide))
        inside_px = np.minimum(float(tall) - np.abs(y), float(wide) - np.abs(x))
    mask: Pixels = np.clip(inside_px / edge_px + 0.5, 0, 1)[..., None].astype(np.float32)
    return mask


def kept_behind(mask: Pixels, picture: Picture, forged: Picture) -> Picture:
    """Return the forged picture where the mask is 1 and the picture where it is 0; between, a mixture.

    picture, forged: uint8 [..., H, W, 3]; mask: float32 [..., H, W, 1] in 0..1.
    """
    pixels = picture.astype(np.float32)
    return to_picture(pixels + mask * (forged.astype(np.float32) - pixels))


def _middle(rng: np.random.Generator, side: int, reach: float) -> float:
    """Draw where a shape that reaches so far lies wholly inside; the middle where it does not fit."""
    return float(rng.uniform(reach, side - reach)) if 2 * reach < side else side / 2
