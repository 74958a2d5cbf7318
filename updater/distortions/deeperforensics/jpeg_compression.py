"""JPEG of DeeperForensics-1.0: no JPEG, but bilinear down by a factor without anti-aliasing, and back.

In whole numbers, as OpenCV interpolates bytes: weights of 11 bits, and a few bits below a level are kept
between the two directions.
"""

import numpy as np
from numpy.typing import NDArray

from updater.filters import COLUMNS, ROWS, Picture

FACTORS = (2, 3, 4, 5, 6)
_PARTS = 2048

Whole = NDArray[np.int32]


def apply(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Coarsen uint8 RGB [T, H, W, 3]; level 1..5. Draws nothing."""
    height, width = frames.shape[1:3]
    factor = FACTORS[level - 1]
    return _bilinear(_bilinear(frames, max(1, height // factor), max(1, width // factor)), height, width)


def _bilinear(frames: Picture, height: int, width: int) -> Picture:
    """Interpolate between the two nearest rows and columns; the centres of pixels lie at halves."""
    held = frames.astype(np.int32)
    if frames.shape[1:3] == (2 * height, 2 * width):
        four = held[:, ::2] + held[:, 1::2]
        return ((four[:, :, ::2] + four[:, :, 1::2] + 2) >> 2).astype(np.uint8)
    left, right = _weighed(held, width, COLUMNS)
    above, below = _weighed((left + right) >> 4, height, ROWS)
    return (((above >> 16) + (below >> 16) + 2) >> 2).astype(np.uint8)


def _weighed(held: Whole, size: int, axis: int) -> tuple[Whole, Whole]:
    """The nearest two along an axis of each of `size` places, times their weights of 2048."""
    count = held.shape[axis]
    places = ((np.arange(size) + 0.5) * (count / size) - 0.5).astype(np.float32)
    if axis == COLUMNS:
        # Beyond the borders a column counts once; a row counts twice, in two parts that are cut apart.
        places = np.clip(places, 0, count - 1)
    first = np.floor(places).astype(int)
    edges = [1] * held.ndim
    edges[axis] = size
    share = (places - first).reshape(edges)
    first, second = np.clip(first, 0, count - 1), np.clip(first + 1, 0, count - 1)
    near = np.take(held, first, axis) * np.rint((1 - share) * _PARTS).astype(np.int32)
    far = np.take(held, second, axis) * np.rint(share * _PARTS).astype(np.int32)
    return near, far
