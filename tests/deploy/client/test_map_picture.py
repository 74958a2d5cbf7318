"""A map over its picture: redder where forged, untouched where not, darker where nobody looked."""

import numpy as np

from deploy.client.map_picture import drawn
from detector.looks.map_look import PictureMap, forgery_map

GREY = np.full((40, 60, 3), 100, np.uint8)


def test_forged_cells_are_red_and_framed_and_what_was_not_looked_at_is_dark() -> None:
    cells = np.zeros((4, 6), np.float32)
    cells[1:3, 2:4] = 1
    found = forgery_map(PictureMap(cells, (64, 32, 48, 32)), 0.5, 0)
    shown = np.asarray(drawn(GREY, 120, found))  # at half its native size
    assert shown.shape == (40, 60, 3)
    red, grey = shown[..., 0].astype(int), shown[..., 1].astype(int)
    np.testing.assert_array_equal(shown[:16], 50)
    np.testing.assert_array_equal(shown[18, 34], [100, 100, 100])
    middle = (slice(23, 25), slice(43, 45))
    assert red[middle].min() > 180
    assert grey[middle].max() < 70
    np.testing.assert_array_equal(shown[20, 40], [255, 40, 40])
    np.testing.assert_array_equal(shown[27, 47], [255, 40, 40])


def test_without_anything_marked_there_is_no_frame() -> None:
    found = forgery_map(PictureMap(np.zeros((5, 8), np.float32), (0, 0, 60, 40)), 0.5, 0)
    np.testing.assert_array_equal(np.asarray(drawn(GREY, 60, found)), GREY)


def test_a_frame_that_is_smaller_than_a_pixel_of_what_is_shown_is_drawn_all_the_same() -> None:
    cells = np.zeros((96, 96), np.float32)
    cells[50, 50] = 1
    found = forgery_map(PictureMap(cells, (4000, 1000, 768, 768)), 0.5, 0)
    shown = np.asarray(drawn(np.zeros((341, 1024, 3), np.uint8), 9000, found))
    assert (shown == [255, 40, 40]).all(2).any()
