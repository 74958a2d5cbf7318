"""Clips simulated from real crops: the same each time, forged in their stretches alone, noise anew."""

import numpy as np
import pytest
import torch

from detector.features.cell_traces import FrameFeatures
from updater.data.real_clips import RealClips
from updater.outliers.pseudo_forgeries import OPERATIONS
from updater.scan import simulated
from updater.scan.clips import FRAMES, SeenFrames
from updater.scan.simulated import library_clip, library_clips, real_clips, simulate_clip, simulate_clips

NOTHING: frozenset[str] = frozenset()
CROP = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8).repeat(4, 0).repeat(4, 1)


def means(frames: np.ndarray) -> np.ndarray:
    return frames.mean((1, 2), dtype=np.float32)


def test_the_same_draws_give_the_same_clip():
    first, again = (simulate_clip(np.random.default_rng(3), CROP, NOTHING, forged=True) for _ in range(2))
    np.testing.assert_array_equal(first.frames, again.frames)
    assert first.segments == again.segments
    assert first.frames.shape == (FRAMES, 64, 64, 3)
    assert not np.array_equal(
        first.frames, simulate_clip(np.random.default_rng(4), CROP, NOTHING, forged=True).frames
    )


@pytest.fixture
def uncoded(monkeypatch):
    monkeypatch.setattr(simulated, "through_h264", lambda frames, rate_factor: frames)


@pytest.mark.parametrize("seed", range(5))
def test_a_forged_clip_is_the_real_one_but_for_its_stretches(uncoded, seed):
    real, forged = (
        simulate_clip(np.random.default_rng(seed), CROP, NOTHING, forged=forged) for forged in (False, True)
    )
    assert real.segments == ()
    inside = np.zeros(FRAMES, bool)
    for first, end in forged.segments:
        inside[first:end] = True
    assert 0 < inside.sum() < FRAMES
    np.testing.assert_array_equal((real.frames != forged.frames).any((1, 2, 3)), inside)


def test_noise_is_anew_in_each_frame_of_what_a_window_shows(uncoded, monkeypatch):
    monkeypatch.setattr(simulated, "smooth_path", lambda rng, frames, reach: np.zeros((frames, 2), np.int64))
    frames = simulate_clip(np.random.default_rng(1), CROP, NOTHING, forged=False).frames.astype(np.float32)
    assert (frames[1:] != frames[:-1]).mean() > 0.1
    assert np.abs(frames.mean(0) - CROP).max() < 12
    assert np.ptp(frames.mean((1, 2)), axis=0).max() < 0.5


@pytest.mark.slow
def test_clips_have_their_share_of_forged_ones_and_fewer_are_the_first_of_more():
    crops = np.stack([CROP, CROP[::-1]])
    told: list[tuple[int, int]] = []

    def clips(count: int, share: float) -> list:
        return simulate_clips(
            crops, means, count, share, without=NOTHING, seed=(0, 1), progress=lambda *at: told.append(at)
        )

    four, two = clips(4, 0.5), clips(2, 0.5)
    assert [bool(len(clip.segments)) for clip in four] == [False, True, False, True]
    assert told[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for one, other in zip(four, two, strict=False):
        np.testing.assert_array_equal(one.features, other.features)
    assert not any(len(clip.segments) for clip in clips(3, 0))


def test_what_no_clip_can_be_made_of_is_refused():
    with pytest.raises(ValueError, match="there are none"):
        simulate_clips(CROP[None][:0], means, 1, 0.5, without=NOTHING, seed=(0,))
    everything = frozenset().union(*(operation.kinds for operation in OPERATIONS.values()))
    with pytest.raises(ValueError, match="no operation"):
        simulate_clip(np.random.default_rng(0), CROP, everything, forged=True)


NOTHING: frozenset[str] = frozenset()
VIDEOS = RealClips(
    np.random.default_rng(0).integers(0, 256, (18 + 24 + 20, 16, 16, 3), np.uint8).repeat(4, 1).repeat(4, 2),
    np.array([0, 18, 42, 62]),
    ("a", "b", "b"),
)


@pytest.mark.parametrize("seed", range(5))
def test_a_forged_clip_is_the_video_but_for_its_stretches(uncoded, seed):
    frames = VIDEOS[1]
    made = library_clip(np.random.default_rng(seed), frames, NOTHING, forged=True)
    inside = np.zeros(len(frames), bool)
    for first, end in made.segments:
        inside[first:end] = True
    assert 0 < inside.sum() < len(frames)
    np.testing.assert_array_equal((made.frames != frames).any((1, 2, 3)), inside)


def test_a_real_clip_is_the_video_and_some_are_coded_once_more_as_forged_ones_are():
    frames = VIDEOS[0]
    made = [library_clip(np.random.default_rng(seed), frames, NOTHING, forged=False) for seed in range(20)]
    assert all(one.segments == () for one in made)
    assert 5 <= sum(np.array_equal(one.frames, frames) for one in made) <= 15
    as_it_is = library_clip(np.random.default_rng(0), frames, NOTHING, forged=False, coded_again_share=0)
    np.testing.assert_array_equal(as_it_is.frames, frames)
    forged = library_clip(np.random.default_rng(0), frames, NOTHING, forged=True)
    assert (forged.frames != frames).any((1, 2, 3)).all()


def test_videos_are_taken_in_turn_and_each_comes_real_and_forged():
    def clips(count: int) -> list:
        return library_clips(
            VIDEOS, (2, 0, 1), means, count, without=NOTHING, seed=(0, 1), coded_again_share=0
        )

    six, two = clips(6), clips(2)
    assert [len(clip.features) for clip in six] == [20, 18, 24] * 2
    assert [bool(len(clip.segments)) for clip in six] == [False, True, False, True, False, True]
    for one, other in zip(six, two, strict=False):
        np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(six[0].features, means(VIDEOS[2]))


def test_real_videos_come_as_they_are():
    told: list[tuple[int, int]] = []
    clips = real_clips(VIDEOS, (2, 0), means, lambda *at: told.append(at))
    assert told == [(1, 2), (2, 2)]
    for clip, number in zip(clips, (2, 0), strict=True):
        np.testing.assert_array_equal(clip.features, means(VIDEOS[number]))
        assert not len(clip.segments)


@pytest.mark.slow
@pytest.mark.parametrize("frames", [1, 4, 9])
def test_they_are_those_that_torch_computes(frames: int) -> None:
    crops = np.random.default_rng(frames).integers(0, 256, (frames, 64, 64, 3), np.uint8)
    with torch.inference_mode():
        wanted = FrameFeatures(64)(torch.from_numpy(crops).permute(0, 3, 1, 2).float()).numpy()
    found = SeenFrames(64)(crops)
    assert found.shape == wanted.shape
    assert (np.abs(found - wanted) / (1 + np.abs(wanted))).max() < 1e-3


def test_a_side_that_has_no_features_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        SeenFrames(60)
