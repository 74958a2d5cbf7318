"""Pseudo-forgeries that say where they lie: known pictures tampered with behind a random mask.

They teach a localizer what a forged region looks like beside the rest of its picture, whatever it was forged
by, so that nobody has to draw a mask. While a family is measured as unseen, operations of its kinds are out;
the mask itself stays.
"""

import io
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from updater.filters import ROWS, Picture, Pixels, to_picture
from updater.outliers.exposure import SAVED_KIND
from updater.outliers.masks import AREA, random_mask
from updater.outliers.pseudo_forgeries import tampered

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
    rng: np.random.Generator,
    crops: Picture,
    without: frozenset[str],
    share: tuple[float, float] = AREA,
) -> LocalForgery:
    """Tamper with the crops of one picture, uint8 [N, S, S, 3], by 1 to 3 operations, in part.

    The mask covers that share of the area, from the least to the most. It is drawn over a square of crops
    side by side, in their order, which is where those that cover a picture lie in it; of others their places
    are not known. No operation whose kinds meet `without` is used. Raises ValueError if none is left.
    """
    forged = tampered(rng, crops.astype(np.float32), without, behind_mask=True)
    count, side = len(crops), crops.shape[ROWS]
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    whole = random_mask(rng, rows * side, columns * side, share)
    tiles = whole.reshape(rows, side, columns, side, 1).swapaxes(1, 2).reshape(-1, side, side, 1)
    masks = tiles[:count]
    kept = crops.astype(np.float32)
    return LocalForgery(to_picture(kept + masks * (forged - kept)), masks[..., 0])


def processed(rng: np.random.Generator, crops: Picture, without: frozenset[str]) -> Picture:
    """Do one random operation to all of a picture's crops, one time in five, before it is forged or not.

    So a picture of another camera or software is none that is forged: only what differs from the rest of
    its own picture is. No operation whose kinds meet `without` is used. Raises ValueError if none is left.
    """
    if rng.random() >= PROCESSED_SHARE:
        return crops
    return to_picture(tampered(rng, crops.astype(np.float32), without, behind_mask=True, most=1))


def saved_again(rng: np.random.Generator, crops: Picture, without: frozenset[str]) -> Picture:
    """Save crops as a JPEG, nine times in ten, and never where compression is left out.

    Real pictures and pseudo-forgeries are saved alike, so that it does not tell them apart.
    """
    if SAVED_KIND in without or rng.random() >= SAVED_SHARE:
        return crops
    quality = int(rng.integers(*_JPEG_QUALITIES))
    return np.stack([_compressed(crop, quality) for crop in crops])


def _compressed(crop: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
