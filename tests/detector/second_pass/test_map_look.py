"""A picture's map: crops cover it or its middle, on the grid of cells, and are joined where they lie."""

import base64
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from scipy import ndimage

from detector.release.crop_graphs import CELL_PX
from detector.second_pass.map_look import MAX_CROPS, PictureMap, assemble_map, cells_of, covering, forgery_map

SIDES = st.integers(1, 3000)


@given(width=SIDES, height=SIDES)
def test_crops_lie_on_the_grid_within_the_part_and_are_at_most_36(width, height):
    corners, (left, top, part_width, part_height) = covering(width, height, 128)
    assert 1 <= len(corners) <= MAX_CROPS
    assert len(set(corners)) == len(corners)
    assert 0 <= left <= width - part_width
    assert 0 <= top <= height - part_height
    for x, y in corners:
        assert (x % CELL_PX, y % CELL_PX) == (0, 0)
        assert left <= x <= max(left, left + part_width - 128)
        assert top <= y <= max(top, top + part_height - 128)
    if width <= 768 and height <= 768:
        assert (part_width, part_height) == (width, height)


@given(width=st.integers(1, 900), height=st.integers(1, 900))
def test_every_cell_of_the_part_is_what_was_said_of_its_place(width, height):
    corners, part = covering(width, height, 128)
    rows, columns = -(-part[3] // CELL_PX), -(-part[2] // CELL_PX)
    y, x = np.arange(400)[:, None], np.arange(400)[None]
    whole = (y * 1000 + x).astype(np.float32)
    offsets = [((top - part[1]) // CELL_PX, (left - part[0]) // CELL_PX) for left, top in corners]
    cells = np.stack([whole[row : row + 16, column : column + 16] for row, column in offsets])
    found = assemble_map(cells, corners, part)
    assert found.part == part
    assert found.cells.shape == (rows, columns)
    # The last cell of a side that is no multiple of 8 px may be its neighbour's.
    assert np.array_equal(found.cells[: rows - 1, : columns - 1], whole[: rows - 1, : columns - 1])


def test_where_crops_overlap_a_cell_is_the_mean():
    cells = np.stack([np.zeros((16, 16), np.float32), np.ones((16, 16), np.float32)])
    found = assemble_map(cells, ((0, 0), (64, 0)), (0, 0, 192, 128)).cells
    assert found[:, :8].max() == 0
    assert np.all(found[:, 8:16] == 0.5)
    assert found[:, 16:].min() == 1


def test_a_large_picture_is_mapped_in_its_middle():
    corners, part = covering(4000, 3000, 128)
    assert (len(corners), part) == (36, (1616, 1112, 768, 768))
    assert covering(5000, 300, 128)[1] == (1728, 0, 1536, 300)


def test_a_mask_becomes_the_mean_of_each_cell():
    mask = np.zeros((20, 16), np.float32)
    mask[:8, :4] = 1
    mask[16:] = 1
    assert cells_of(mask, (3, 2)).tolist() == [[0.5, 0.0], [0.0, 0.0], [1.0, 1.0]]


def shown(png: str) -> Any:
    return np.asarray(Image.open(BytesIO(base64.b64decode(png))))


CELL_GRIDS = arrays(np.float32, (6, 9), elements=st.floats(0, 1, width=32))


@given(cells=CELL_GRIDS, threshold=st.floats(0.05, 1))
def test_what_is_marked_can_be_read_from_the_png(cells, threshold):
    found = forgery_map(PictureMap(cells, (16, 8, 70, 45)), threshold, 0)
    marked = shown(found.png) >= threshold * 255
    np.testing.assert_allclose(shown(found.png), cells * 255, atol=0.501)
    assert found.share == pytest.approx(marked.mean())
    if not marked.any():
        assert found.box is None
        return
    assert found.box is not None
    left, top, width, height = found.box
    assert 16 <= left < left + width <= 16 + 70
    assert 8 <= top < top + height <= 8 + 45
    groups, _ = ndimage.label(marked)
    inside = groups[
        (top - 8) // 8 : -(-(top - 8 + height) // 8), (left - 16) // 8 : -(-(left - 16 + width) // 8)
    ]
    largest = np.bincount(groups[groups > 0]).max()
    assert np.bincount(inside[inside > 0]).max() == largest


def test_a_map_of_the_largest_part_takes_less_than_16_kb():
    cells = np.random.default_rng(0).random((96, 96), np.float32)
    assert len(forgery_map(PictureMap(cells, (0, 0, 768, 768)), 0.5, 0).model_dump_json()) < 16_000
