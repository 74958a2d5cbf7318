"""Pictures and maps whose pixels come from other places, between pixels too."""

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from updater.filters import Picture

Field = NDArray[np.float64]
"""How many pixels (down, across) from its own place each pixel comes from, [2, H, W]."""


def displaced(stack: Picture, field: Field) -> Picture:
    """Move uint8 [T, H, W] or [T, H, W, C] by a field [2, H, W], bilinear, the borders mirrored."""
    places = np.indices(stack.shape[1:3]) + field
    moved = np.empty_like(stack)
    for number, one in enumerate(stack):
        planes = [map_coordinates(plane, places, np.float32, 1, "mirror") for plane in _planes(one)]
        moved[number] = np.rint(np.stack(planes, -1)).reshape(one.shape)
    return moved


def _planes(one: Picture) -> Picture:
    """The channels of [H, W, C], first; [H, W] has one."""
    return np.moveaxis(one.reshape(*one.shape[:2], -1), -1, 0)
