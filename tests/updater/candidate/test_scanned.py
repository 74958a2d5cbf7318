"""An update's scanner learns from the library's real videos and is set on them, where there are enough."""

import dataclasses

import numpy as np
import pytest
import torch

from detector.features.cell_traces import CELL_WIDTH
from detector.release.crop_graphs import ScanContract
from updater.candidate.draft import Draft
from updater.candidate.plan import LEAST, make_plan
from updater.candidate.scanned import ScannedClips, build_scanner
from updater.data.real_clips import LEAST_VIDEOS, RealClips
from updater.data.training_data import Splits
from updater.scan.training import train_scanner
from updater.settings import UpdaterSettings

SETTINGS = UpdaterSettings(device="cpu", backbone="none", scanner_steps=40)


FRAMES = 18


def videos(count, split):
    """Flat scenes under noise, two of a group: so that what is one witness is counted once."""
    rng = np.random.default_rng(count)
    levels = rng.uniform(60, 190, (2 * count, 1, 1, 1, 3))
    noise = rng.normal(0, 4, (2 * count, FRAMES, 64, 64, 3))
    frames = (levels + noise).clip(0, 255).astype(np.uint8).reshape(-1, 64, 64, 3)
    groups = tuple(f"{split}-{number // 2}" for number in range(2 * count))
    return RealClips(frames, FRAMES * np.arange(2 * count + 1), groups)


@pytest.fixture
def make(labelled):
    def make(held, learnt=2, tested=2, steps=40):
        items = {split: labelled({"real": 9, "blocky": 9}, seed) for seed, split in enumerate(LEAST)}
        plan = make_plan(SETTINGS, None, Splits(**items))
        clips = {
            split: videos(count, split)
            for split, count in {"train": learnt, "calibration": held, "test": tested}.items()
            if count
        }
        splits = dataclasses.replace(plan.splits, clips=clips)
        return dataclasses.replace(plan, splits=splits, scanner_steps=steps)

    return make


def means(frames):
    return frames.mean((1, 2), dtype=np.float32)


def silent(stage, done, total):
    """No one listens."""


@pytest.mark.slow
def test_beside_simulated_clips_it_learns_from_each_video_as_it_is_and_forged(make):
    train, of_library = ScannedClips(make(0), means, silent).to_learn()
    assert (len(train), of_library) == (24, 8)
    assert [len(clip.features) for clip in train] == [96] * 16 + [FRAMES] * 8
    assert sum(bool(len(clip.segments)) for clip in train[:16]) == 8
    assert [bool(len(clip.segments)) for clip in train[16:]] == [False, True] * 2 + [True, False] * 2
    train, of_library = ScannedClips(make(0, learnt=0), means, silent).to_learn()
    assert (len(train), of_library) == (16, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "used"), [(LEAST_VIDEOS - 1, 0), (LEAST_VIDEOS, LEAST_VIDEOS)])
def test_too_few_groups_of_real_videos_set_no_threshold(make, groups, used):
    plan = make(groups)
    simulated, of_videos = ScannedClips(plan, means, silent).held_back()
    assert (len(simulated), len(of_videos)) == (6, used)
    for number, clip in enumerate(of_videos):
        np.testing.assert_array_equal(clip.features, means(plan.splits.clips["calibration"][2 * number]))


@pytest.mark.slow
def test_each_group_of_test_videos_is_seen_as_it_is_and_forged(make):
    _, of_videos = ScannedClips(make(0), means, silent).to_test()
    assert sorted(bool(len(clip.segments)) for clip in of_videos) == [False, False, True, True]
    assert ScannedClips(make(0, tested=0), means, silent).to_test()[1] == []


@pytest.mark.slow
def test_the_same_seed_gives_the_same_scanner_and_another_one_another(make):
    plan = make(0, steps=10)

    def features(frames):
        return np.pad(means(frames), ((0, 0), (0, CELL_WIDTH)))

    def train(seed):
        clips = ScannedClips(dataclasses.replace(plan, seed=seed), features, silent)
        return train_scanner(clips.to_learn()[0], seed, epochs=1)

    first, again, other = map(train, (0, 0, 1))
    weights = [one.state_dict() for one in (first, again, other)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert not all(torch.equal(value, weights[2][name]) for name, value in weights[0].items())


@pytest.mark.slow
def test_a_scanner_says_on_how_many_videos_it_rests(make, tmp_path):
    one = build_scanner(Draft(tmp_path / "draft", "of this plan"), make(LEAST_VIDEOS, steps=10))
    assert isinstance(one.contract, ScanContract)
    assert one.contract.reals == 2 + LEAST_VIDEOS
    assert one.contract.reals_told <= 0.05
    assert one.found.held_library == LEAST_VIDEOS
    assert one.found.learnt_library == 2
    assert (one.found.library.reals, one.found.library.forged) == (1, 1)
