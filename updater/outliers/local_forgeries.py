"""Pseudo-forgeries that say where they lie: known pictures tampered with behind a random mask.

They teach a localizer what a forged region looks like beside the rest of its picture, whatever it was forged
by, so that nobody has to draw a mask. While a family is measured as unseen, operations of its kinds are out;
the mask itself stays. The masks are those of the synthetic stream's forgeries too.
"""

import math
from typing import NamedTuple

import numpy as np

from updater.filters import ROWS, Picture, Pixels, to_picture
from updater.outliers.exposure import SAVED_KIND, compress_jpeg
from updater.outliers.pseudo_forgeries import tamper

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


PROCESSED_SHARE = 0.2
SAVED_SHARE = 0.9
_JPEG_QUALITIES = (80, 97)


class LocalForgery(NamedTuple):
    """The crops of one picture, and the truth of them."""

    crops: Picture
    """uint8 [N, S, S, 3]"""
    masks: Pixels
    """float32 [N, S, S] in 0..1: how much of each pixel is forged"""


def forge_locally(
    rng: np.random.Generator, crops: Picture, without: frozenset[str], share: tuple[float, float] = AREA
) -> LocalForgery:
    """Tamper with the crops of one picture, uint8 [N, S, S, 3], by 1 to 3 operations, in part.

    The mask covers that share of the area, from the least to the most. It is drawn over a square of crops
    side by side, in their order, which is where those that cover a picture lie in it; of others their places
    are not known. No operation whose kinds meet `without` is used. Raises ValueError if none is left.
    """
    forged = tamper(rng, crops.astype(np.float32), without, behind_mask=True)
    count, side = len(crops), crops.shape[ROWS]
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    whole = random_mask(rng, rows * side, columns * side, share)
    tiles = whole.reshape(rows, side, columns, side, 1).swapaxes(1, 2).reshape(-1, side, side, 1)
    masks = tiles[:count]
    kept = crops.astype(np.float32)
    return LocalForgery(to_picture(kept + masks * (forged - kept)), masks[..., 0])


def process_crops(rng: np.random.Generator, crops: Picture, without: frozenset[str]) -> Picture:
    """Do one random operation to all of a picture's crops, one time in five, before it is forged or not.

    So a picture of another camera or software is none that is forged: only what differs from the rest of
    its own picture is. No operation whose kinds meet `without` is used. Raises ValueError if none is left.
    """
    if rng.random() >= PROCESSED_SHARE:
        return crops
    return to_picture(tamper(rng, crops.astype(np.float32), without, behind_mask=True, most=1))


def saved_again(rng: np.random.Generator, crops: Picture, without: frozenset[str]) -> Picture:
    """Save crops as a JPEG, nine times in ten, and never where compression is left out.

    Real pictures and pseudo-forgeries are saved alike, so that it does not tell them apart.
    """
    if SAVED_KIND in without or rng.random() >= SAVED_SHARE:
        return crops
    quality = int(rng.integers(*_JPEG_QUALITIES))
    return np.stack([compress_jpeg(crop, quality) for crop in crops])
