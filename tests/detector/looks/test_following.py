"""The one place of a video that is followed: the largest face, mixed between the searched frames."""

import pytest

from detector.looks.following import corners_along, face_followed


def test_a_face_moves_evenly_between_two_frames_where_it_was_found_and_rests_outside():
    boxes = face_followed({2: (10, 20, 40, 50), 6: (50, 20, 48, 54)}, range(9))
    assert boxes[:3] == [(10, 20, 40, 50)] * 3
    assert boxes[4] == (30, 20, 44, 52)
    assert boxes[6:] == [(50, 20, 48, 54)] * 3


def test_without_a_face_there_is_nothing_to_follow():
    with pytest.raises(ValueError, match="no face"):
        face_followed({}, range(5))
    assert corners_along({}, range(3), (640, 360), 128, (64, 8)) == [(64, 8)] * 3


def test_the_crop_lies_on_the_face_in_every_frame():
    corners = corners_along({0: (0, 0, 60, 60), 10: (400, 200, 60, 60)}, range(11), (640, 360), 128, (0, 0))
    assert corners[0] == (0, 0)
    for number, (left, top) in enumerate(corners):
        assert left <= 40 * number + 8
        assert left + 128 >= min(640, 40 * number + 52)
        assert top <= 20 * number + 8
        assert top + 128 >= min(360, 20 * number + 52)
