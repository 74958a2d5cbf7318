import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import COPIES, drawn, hashes_of

from memory.index.picture_index import PictureIndex

SHOWN = [hashes_of(drawn(seed)) for seed in range(60)]


@pytest.fixture(scope="module")
def index() -> PictureIndex:
    filled = PictureIndex()
    filled.add(SHOWN, range(60))
    return filled


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 59), st.sampled_from(sorted(COPIES)))
def test_a_copy_is_found_however_it_was_made(index, seed, copy):
    assert index.nearest(hashes_of(COPIES[copy](drawn(seed)))) == seed


def test_other_pictures_are_not_found(index):
    assert [index.nearest(hashes_of(drawn(seed))) for seed in range(100, 160)] == [None] * 60


def test_the_original_is_found_where_its_trimmed_copy_came_first():
    index = PictureIndex()
    index.add([hashes_of(COPIES["trimmed by a twentieth"](drawn(1)))], [7])
    assert index.nearest(SHOWN[1]) == 7


def test_what_has_no_hash_is_like_nothing(index):
    assert index.nearest(b"") is None
    assert PictureIndex().nearest(SHOWN[0]) is None
    blank = PictureIndex()
    blank.add([b"", SHOWN[1]], [0, 1])
    assert blank.nearest(SHOWN[1]) == 1


def test_a_video_is_found_where_more_than_half_of_its_frames_are_shown():
    index = PictureIndex()
    index.add([b"".join(SHOWN[:8]), SHOWN[20]], [3, 4])
    assert index.nearest(b"".join(SHOWN[3:11])) == 3
    assert index.nearest(b"".join(SHOWN[4:12])) is None
    # A picture out of a video shows what the video does; a video of which one frame is a picture does not.
    assert index.nearest(SHOWN[5]) == 3
    assert index.nearest(b"".join(SHOWN[20:28])) is None


def test_what_left_is_found_no_more(index):
    codes, places = index.content
    left = PictureIndex()
    left.put(codes, places)
    left.remove(np.array([5]))
    assert (left.nearest(SHOWN[5]), left.nearest(SHOWN[6])) == (None, 6)
