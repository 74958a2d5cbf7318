"""The luma of ITU-R BT.601."""

import numpy as np
from numpy.typing import NDArray

from updater.filters import Pixels

_SHARES = np.array([0.299, 0.587, 0.114], np.float32)


def luma(pixels: Pixels) -> Pixels:
    """Weigh the channels of float32 RGB [..., 3] in levels; returns [..., 1]."""
    weighed: NDArray[np.float32] = pixels @ _SHARES
    return weighed[..., None]
