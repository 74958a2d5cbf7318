"""The colour space that DeeperForensics' code computes in, in float32 as OpenCV converts it.

Y = .299 R + .587 G + .114 B, Cb = .564 (B − Y) + .5, Cr = .713 (R − Y) + .5, brought to studio range and
divided by 255. Products are added in OpenCV's order and before they are rounded, as processors with a fused
multiply-add do it, so that results are equal to the bit.
"""

import numpy as np
from numpy.typing import NDArray

from updater.filters import Picture

Planes = NDArray[np.float32]

_HALF = np.float32(0.5)
_LEVELS = np.float32(255)


def to_ycbcr(frames: Picture) -> Planes:
    """Convert uint8 RGB [..., 3] to float32 Y, Cb, Cr [..., 3] in studio range, 255 as 1."""
    levels = frames.astype(np.float32)
    red, green, blue = levels[..., 0], levels[..., 1], levels[..., 2]
    luma = _fused(blue, 0.114, _fused(green, 0.587, red * np.float32(0.299)))
    planes = np.empty_like(levels)
    planes[..., 0] = (luma * np.float32(219) + np.float32(16)) / _LEVELS
    for channel, (colour, factor) in enumerate(((blue, 0.564), (red, 0.713)), 1):
        chroma = _fused(colour - luma, factor, _HALF)
        planes[..., channel] = (chroma * np.float32(224) + np.float32(16)) / _LEVELS
    return planes


def to_rgb(planes: Planes) -> Planes:
    """Convert back to float32 RGB [..., 3] in levels, neither rounded nor clipped."""
    luma = (planes[..., 0] * _LEVELS - np.float32(16)) / np.float32(219)
    blueness = (planes[..., 1] * _LEVELS - np.float32(16)) / np.float32(224) - _HALF
    redness = (planes[..., 2] * _LEVELS - np.float32(16)) / np.float32(224) - _HALF
    levels = np.empty_like(planes)
    levels[..., 0] = _fused(redness, 1.403, luma)
    levels[..., 1] = _fused(redness, -0.714, _fused(blueness, -0.344, luma))
    levels[..., 2] = _fused(blueness, 1.773, luma)
    return levels


def _fused(values: Planes, factor: float, summand: Planes | np.float32) -> Planes:
    """Multiply by a float32 factor and add, rounding once: in float64 the product is exact."""
    product = values * np.float64(np.float32(factor))
    product += summand
    fused: Planes = product.astype(np.float32)
    return fused
