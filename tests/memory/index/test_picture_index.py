import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from near_duplicates import COPIES
from pictures import drawn, hashes_of

from detector.release.manifest import FEATURE_VERSION
from ingest.picture_hash import picture_hashes
from memory import rows
from memory.index.index import Index
from memory.index.picture_index import PictureIndex

WIDTH = 24


FAR = {"trimmed by 5 % at one corner"}


"""is what the hashes do not reach"""


SHOWN = [hashes_of(drawn(seed)) for seed in range(60)]


@pytest.fixture(scope="module")
def filled():
    index = PictureIndex()
    index.add(SHOWN, range(60))
    return index


@given(st.integers(0, 59), st.sampled_from(sorted(COPIES.keys() - FAR)))
def test_a_copy_is_found_however_it_was_made(filled, seed, copy):
    assert filled.nearest(hashes_of(COPIES[copy](drawn(seed)))) == seed


def test_other_pictures_are_not_found(filled):
    assert [filled.nearest(hashes_of(drawn(seed))) for seed in range(100, 160)] == [None] * 60


def test_the_original_is_found_where_its_trimmed_copy_came_first():
    index = PictureIndex()
    index.add([hashes_of(COPIES["trimmed by 5 % at each side"](drawn(1)))], [7])
    assert index.nearest(SHOWN[1]) == 7


def test_what_has_no_hash_is_like_nothing(filled):
    assert filled.nearest(b"") is None
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


def test_what_left_is_found_no_more(filled):
    codes, places = filled.content
    left = PictureIndex()
    left.put(codes, places)
    left.remove(np.array([5]))
    assert (left.nearest(SHOWN[5]), left.nearest(SHOWN[6])) == (None, 6)


@pytest.mark.parametrize("kept", [True, False])
def test_what_shows_the_same_is_found_after_a_start_with_any_snapshot(tmp_path, store, fill, make, kept):
    path, shown = tmp_path / "index", [hashes_of(drawn(i)) for i in range(30)]
    fill([make(i, picture_hashes=shown[i]) for i in range(20)])
    Index.open(path, store, FEATURE_VERSION, WIDTH).save(path)
    fill([make(i, picture_hashes=shown[i]) for i in range(20, 25)])
    if not kept:
        path.unlink()
    index = Index.open(path, store, FEATURE_VERSION, WIDTH)
    with store.write() as connection:
        rows.drop(connection, ["media-0-3"])
    with store.read() as connection:
        index.catch_up(connection)
    found = {f"media-0-{i}" for i in range(30) if index.showing(shown[i]) == f"media-0-{i}"}
    assert found == set(index.ids) == {f"media-0-{i}" for i in range(25)} - {"media-0-3"}


def test_photographs_of_one_camera_are_not_taken_for_one_another():
    down, across = np.mgrid[-1:1:200j, -1:1:240j]
    vignette = (1 - 0.4 * (down**2 + across**2) / 2)[..., None]
    index = PictureIndex()
    for seed in range(120):
        photograph = np.asarray(drawn(seed)) * vignette
        photograph[-16:-4, -80:-4] = 255  # where it writes the date
        hashes = picture_hashes(photograph.astype(np.uint8))
        assert index.nearest(hashes) is None
        index.add([hashes], [seed])
