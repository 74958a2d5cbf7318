"""Where crops of a picture lie, and one map of what was said of their cells. Pure."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.release.cells import CELL_PX
from ingest.sandbox.crops import Box, grid

MAX_CROPS = 36
"""most crops that a picture is mapped by: a larger one is mapped in part"""

Corners = tuple[tuple[int, int], ...]


class PictureMap(NamedTuple):
    """What is known of the part of a picture that was looked at."""

    cells: NDArray[np.float32]
    """[h, w] in 0..1: how likely each cell is forged"""
    part: Box
    """left, top, width, height in native pixels; cells at its right and lower edge may reach beyond it"""


def covering(width: int, height: int, crop_px: int) -> tuple[Corners, Box]:
    """Lay crops over a picture of width x height px, or over its middle where it is too large for them.

    Returns their corners (left, top), multiples of 8 px, and the part of the picture that they cover whole.
    """
    most = int(MAX_CROPS**0.5)
    if _count(width, crop_px) * _count(height, crop_px) <= MAX_CROPS:
        columns, rows = _count(width, crop_px), _count(height, crop_px)
    elif _count(width, crop_px) < most:
        columns, rows = _count(width, crop_px), MAX_CROPS // _count(width, crop_px)
    elif _count(height, crop_px) < most:
        columns, rows = MAX_CROPS // _count(height, crop_px), _count(height, crop_px)
    else:
        columns = rows = most
    part_width, part_height = min(width, columns * crop_px), min(height, rows * crop_px)
    left, top = _middle(width, part_width), _middle(height, part_height)
    inside = grid(part_width, part_height, crop_px, MAX_CROPS)
    return tuple((left + x, top + y) for x, y in inside), (left, top, part_width, part_height)


def assembled(cells: NDArray[np.float32], corners: Corners, part: Box) -> PictureMap:
    """Join the cells of crops, float32 [N, S / 8, S / 8], to a map; where crops overlap, the mean of them."""
    left, top, width, height = part
    shape = -(-height // CELL_PX), -(-width // CELL_PX)
    total, count = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for one, (x, y) in zip(cells, corners, strict=True):
        row, column = (y - top) // CELL_PX, (x - left) // CELL_PX
        inside = one[: shape[0] - row, : shape[1] - column]
        place = np.s_[row : row + inside.shape[0], column : column + inside.shape[1]]
        total[place] += inside
        count[place] += 1
    # The last cells of a side that is no multiple of 8 px may lie in no crop: they are as their neighbours.
    seen = np.nonzero(count.any(1))[0].max() + 1, np.nonzero(count.any(0))[0].max() + 1
    whole = (total / np.maximum(count, 1))[: seen[0], : seen[1]]
    return PictureMap(np.pad(whole, ((0, shape[0] - seen[0]), (0, shape[1] - seen[1])), mode="edge"), part)


def cells_of(mask: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return the mean of a mask, float32 [H, W], in each of h x w cells of 8 px, from its upper left corner.

    Beyond its right and lower edge the mask goes on as it is at the edge.
    """
    rows, columns = shape
    beyond = ((0, max(0, rows * CELL_PX - mask.shape[0])), (0, max(0, columns * CELL_PX - mask.shape[1])))
    whole = np.pad(mask, beyond, mode="edge")[: rows * CELL_PX, : columns * CELL_PX]
    mean: NDArray[np.float32] = whole.reshape(rows, CELL_PX, columns, CELL_PX).mean((1, 3), dtype=np.float32)
    return mean


def _count(side: int, crop_px: int) -> int:
    return max(1, -(-side // crop_px))


def _middle(side: int, part: int) -> int:
    return (side - part) // 2 // CELL_PX * CELL_PX
