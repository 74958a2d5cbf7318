"""The field's augmentation of pictures whose forgeries are to be told by their traces, at native resolution.

Blur of sigma 0 to 3, JPEG of quality 30 to 100, a random crop and a flip: Wang et al. 2020, "CNN-generated
images are surprisingly easy to spot... for now", section 3.2, with its chances of .1 (blur) and .5 (JPEG).
The resize before them: Gragnaniello et al. 2021, "Are GAN generated images easy to detect?".
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from updater.outliers.exposure import compressed

_RESIZED, _SCALES = 0.25, (0.5, 1.25)
_BLURRED, _SIGMA = 0.1, 3.0
_SAVED, _QUALITIES = 0.5, (30, 100)


def augmented(rng: np.random.Generator, pixels: NDArray[np.uint8], side_px: int) -> NDArray[np.uint8]:
    """Return a random crop of a picture, uint8 [H, W, 3] → [S, S, 3], resized, blurred or saved by chance.

    A picture smaller than the crop is reflected at its edges.
    """
    picture = Image.fromarray(pixels)
    if rng.random() < _RESIZED:
        scale = rng.uniform(*_SCALES)
        size = [max(round(side * scale), min(side, side_px)) for side in picture.size]
        picture = picture.resize((size[0], size[1]), Image.Resampling.BICUBIC)
    left, top = (int(rng.integers(max(side - side_px, 0) + 1)) for side in picture.size)
    crop = np.asarray(picture)[top : top + side_px, left : left + side_px]
    lacking = [(0, side_px - side) for side in crop.shape[:2]]
    if any(end for _, end in lacking):
        crop = np.pad(crop, (*lacking, (0, 0)), "symmetric")
    if rng.random() < _BLURRED:
        blur = ImageFilter.GaussianBlur(rng.uniform(0, _SIGMA))
        crop = np.asarray(Image.fromarray(crop).filter(blur))
    if rng.random() < _SAVED:
        crop = compressed(crop, int(rng.integers(_QUALITIES[0], _QUALITIES[1] + 1)))
    return np.ascontiguousarray(crop[:, ::-1] if rng.random() < 0.5 else crop)
