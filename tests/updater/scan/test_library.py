"""Clips of real videos: forged in their stretches alone, and some coded once more, forged or not."""

import numpy as np
import pytest

from updater.data.real_clips import RealClips
from updater.scan import simulated
from updater.scan.library import library_clip, library_clips, real_clips

NOTHING: frozenset[str] = frozenset()
VIDEOS = RealClips(
    np.random.default_rng(0).integers(0, 256, (18 + 24 + 20, 16, 16, 3), np.uint8).repeat(4, 1).repeat(4, 2),
    np.array([0, 18, 42, 62]),
    ("a", "b", "b"),
)


def means(frames: np.ndarray) -> np.ndarray:
    return frames.mean((1, 2), dtype=np.float32)


@pytest.fixture
def uncoded(monkeypatch):
    monkeypatch.setattr(simulated, "through_h264", lambda frames, rate_factor: frames)


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
