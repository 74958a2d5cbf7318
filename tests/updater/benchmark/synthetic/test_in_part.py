"""Media forged in part: the same each time, and forged where and when they say."""

import io
from functools import partial

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.in_part import (
    FRAMES,
    REACH_PX,
    SIDE_PX,
    ClipSample,
    _filmed_scene,
    forge_in_part,
    make_clip,
    make_local,
    numbers_of,
)
from updater.benchmark.synthetic.stream import FROZEN, REAL, digest
from updater.scan.clips import MOST, SHORTEST, Stretch, draw_stretches, forged_along, smooth_path


def decoded(sample: ClipSample) -> np.ndarray:
    with av.open(io.BytesIO(sample.data), format="mp4") as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@given(st.integers(0, 2**32), st.integers(2 * SHORTEST, 300))
def test_stretches_are_one_to_three_none_shorter_than_nine_frames_and_some_is_real(seed, frames):
    segments = draw_stretches(np.random.default_rng(seed), frames)
    assert 1 <= len(segments) <= MOST
    edges = [0, *(edge for segment in segments for edge in segment), frames]
    lengths = np.diff(edges)
    assert (lengths[1:-1] >= SHORTEST).all()
    assert all(length == 0 or length >= SHORTEST for length in (lengths[0], lengths[-1]))
    assert lengths[::2].sum() >= SHORTEST


def test_a_clip_without_room_for_two_stretches_is_refused():
    with pytest.raises(ValueError, match="17 frames"):
        draw_stretches(np.random.default_rng(0), 17)


@pytest.mark.parametrize("family", [REAL, "recompressed"])
def test_the_same_number_gives_the_same_clip(family):
    clip = make_clip(3, "stream", family, 1)
    assert clip == make_clip(3, "stream", family, 1)
    assert clip.data != make_clip(3, "stream", family, 2).data
    assert clip.data != make_clip(4, "stream", family, 1).data
    assert clip.group != make_clip(3, "after", family, 1).group
    assert decoded(clip).shape == (FRAMES, SIDE_PX, SIDE_PX, 3)
    assert bool(clip.segments) == (family != REAL)


def test_what_is_unknown_is_refused():
    with pytest.raises(KeyError):
        make_clip(0, "train", "no-such-family", 0)
    with pytest.raises(KeyError):
        make_clip(0, "no-such-split", REAL, 0)


def test_the_frozen_stream_of_stills_is_untouched():
    assert digest(seed=0, each=1) == FROZEN


def test_noise_is_anew_in_each_frame_and_all_else_of_the_camera_stays():
    # A window that rests shows what the camera changes from frame to frame.
    still = np.zeros((24, 2), np.int64)
    frames = _filmed_scene(np.random.default_rng(5), 1, still).astype(np.float32)
    assert (frames[1:] != frames[:-1]).mean() > 0.1
    means = frames.mean((1, 2))
    assert np.ptp(means, axis=0).max() < 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forgery_is_in_its_frames_alone_and_in_one_region_that_moves_along(family):
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (30, 32, 32, 1), np.uint8).repeat(4, 1).repeat(4, 2).repeat(3, 3)
    moves = np.stack([np.arange(30) - 15, 15 - np.arange(30)], 1)
    made = forged_along(
        np.random.default_rng(1),
        frames,
        [Stretch(4, 13), Stretch(20, 29)],
        moves,
        partial(forge_in_part, FAMILIES[family]),
    )
    changed = (made != frames).any(3)
    assert sorted(np.flatnonzero(changed.any((1, 2)))) == [*range(4, 13), *range(20, 29)]
    places = np.array([np.argwhere(changed[number]).min(0) for number in range(20, 29)])
    if family not in ("blended", "inpainted"):
        # Less than half of a clip's picture, and where it begins goes with the moves, but for what is not
        # changed by chance and for the picture's edge.
        assert changed[20:29].mean() < 0.5
    inner = (places > 0).all(1)
    drift = places[inner] - moves[20:29][inner]
    assert inner.sum() == 0 or np.abs(drift - np.median(drift, 0)).max() <= 6


def test_paths_are_smooth_and_stay_within_reach():
    for seed in range(50):
        path = smooth_path(np.random.default_rng(seed), FRAMES, REACH_PX)
        assert np.abs(path).max() <= REACH_PX
        assert np.abs(np.diff(path, axis=0)).max() <= 3


def test_families_share_what_is_not_real():
    wanted = numbers_of(1000, 300)
    families = [family for family, _ in wanted]
    assert families.count(REAL) == 300
    assert {families.count(family) for family in FAMILIES} == {87, 88}
    assert len(set(wanted)) == 1000


@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_is_forged_where_its_mask_says_and_nowhere_else(family):
    sample = make_local(0, "train", family, 1)
    assert sample.mask.shape == (256, 256)
    share = (sample.mask > 127).mean()
    assert 0.03 <= share <= 0.36 or FAMILIES[family].local
    assert 0 < share < 0.7
    assert Image.open(io.BytesIO(sample.data)).size == (256, 256)
