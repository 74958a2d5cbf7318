"""A picture's map: crops cover it or its middle, on the grid of cells, and are joined where they lie."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detector.looks.map_look import MAX_CROPS, assembled, cells_of, covering
from detector.release.map_contract import CELL_PX

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
    found = assembled(cells, corners, part)
    assert found.part == part
    assert found.cells.shape == (rows, columns)
    # The last cell of a side that is no multiple of 8 px may be its neighbour's.
    assert np.array_equal(found.cells[: rows - 1, : columns - 1], whole[: rows - 1, : columns - 1])


def test_where_crops_overlap_a_cell_is_the_mean():
    cells = np.stack([np.zeros((16, 16), np.float32), np.ones((16, 16), np.float32)])
    found = assembled(cells, ((0, 0), (64, 0)), (0, 0, 192, 128)).cells
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
