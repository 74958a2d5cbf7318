"""Cuts pictures into square patches at native resolution. Pure; nothing is ever resized.

Forensic traces live in the finest detail and in the phase of the 8 x 8 JPEG grid. So patches are not
scaled, and their corners lie on multiples of 8 px of the picture wherever it leaves the choice.
"""

import math

import numpy as np
from numpy.typing import NDArray

Box = tuple[int, int, int, int]
Corners = tuple[tuple[int, int], ...]
_JPEG_GRID_PX = 8
_FACE_MARGIN = 1.3


def grid(width: int, height: int, crop_px: int, patches: int, stride_px: int | None = None) -> Corners:
    """Lay at most `patches` squares evenly over an area of width x height px.

    As many rows and columns as cover the area with corners at most stride_px apart (None: crop_px, so that
    they hardly overlap), or as many as are allowed, split as the area's sides
    are; each square in the middle of its cell, kept inside, its corner rounded down to a multiple of
    8 px. Returns (left, top) in px, row by row; a side shorter than crop_px gets the position 0.
    """
    rows, columns = _rows_and_columns(width, height, crop_px, patches, stride_px or crop_px)
    lefts, tops = _positions(width, crop_px, columns), _positions(height, crop_px, rows)
    return tuple((left, top) for top in tops for left in lefts)


def face_grid(face: Box, width: int, height: int, crop_px: int, patches: int) -> Corners:
    """Lay at most `patches` squares over a face box (left, top, width, height) of a picture.

    A box smaller than crop_px is widened around its middle: the picture's own pixels are better than
    padding. Returns (left, top) in px of the picture, multiples of 8.
    """
    left, box_width = _widen(face[0], face[2], width, crop_px)
    top, box_height = _widen(face[1], face[3], height, crop_px)
    inside = grid(box_width, box_height, crop_px, patches)
    lefts = sorted({_on_jpeg_grid(left + x, width, crop_px) for x, _ in inside})
    tops = sorted({_on_jpeg_grid(top + y, height, crop_px) for _, y in inside})
    return tuple((x, y) for y in tops for x in lefts)


def enlarge(face: Box, width: int, height: int) -> Box:
    """Enlarge a box (left, top, width, height) x 1.3 about its middle, cut to the picture; in px."""
    left, top, box_width, box_height = face
    grow_x, grow_y = (_FACE_MARGIN - 1) * box_width / 2, (_FACE_MARGIN - 1) * box_height / 2
    x0, y0 = max(0, math.floor(left - grow_x)), max(0, math.floor(top - grow_y))
    x1 = min(width, math.ceil(left + box_width + grow_x))
    y1 = min(height, math.ceil(top + box_height + grow_y))
    return x0, y0, max(1, x1 - x0), max(1, y1 - y0)


def cut(picture: NDArray[np.uint8], corners: Corners, crop_px: int) -> NDArray[np.uint8]:
    """Cut squares out of a picture.

    picture is uint8 RGB (height, width, 3), at least 1 x 1; corners are (left, top) in px. A picture
    smaller than crop_px is mirrored beyond its right and lower edge, which keeps its JPEG grid's
    phase. Returns uint8 (N, crop_px, crop_px, 3).
    """
    crops = np.empty((len(corners), crop_px, crop_px, 3), np.uint8)
    for crop, (left, top) in zip(crops, corners, strict=True):
        part = picture[top : top + crop_px, left : left + crop_px]
        missing = [(0, crop_px - side) for side in part.shape[:2]]
        # Each by itself: a row of millions of pixels, mirrored as a whole, were gigabytes.
        crop[:] = np.pad(part, (*missing, (0, 0)), mode="reflect") if any(map(any, missing)) else part
    return crops


def _rows_and_columns(width: int, height: int, crop_px: int, patches: int, stride_px: int) -> tuple[int, int]:
    rows, columns = (1 + max(0, math.ceil((side - crop_px) / stride_px)) for side in (height, width))
    if rows * columns <= patches:
        return rows, columns

    def fitness(shape: tuple[int, int]) -> tuple[int, float]:
        return shape[0] * shape[1], -abs(math.log(shape[1] * height / (shape[0] * width)))

    shapes = ((r, min(columns, patches // r)) for r in range(1, min(rows, patches) + 1))
    return max(shapes, key=fitness)


def _positions(side: int, crop_px: int, count: int) -> list[int]:
    middles = ((index + 0.5) * side / count for index in range(count))
    # Rounded to the grid, two of them may fall together where the side is hardly longer than a patch.
    return sorted({_on_jpeg_grid(math.floor(middle - crop_px / 2), side, crop_px) for middle in middles})


def _on_jpeg_grid(position: int, side: int, crop_px: int) -> int:
    inside = min(max(position, 0), max(side - crop_px, 0))
    return inside // _JPEG_GRID_PX * _JPEG_GRID_PX


def _widen(start: int, length: int, side: int, crop_px: int) -> tuple[int, int]:
    if length >= crop_px:
        return start, length
    length_widened = min(crop_px, side)
    return min(max(start - (length_widened - length) // 2, 0), side - length_widened), length_widened
