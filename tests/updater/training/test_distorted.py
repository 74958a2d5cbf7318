"""Distorted copies beside the items of a training."""

import numpy as np
import pytest
import torch

from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import Step
from updater.distortions.methods import DISTORTIONS
from updater.training.augmentations import Distorted
from updater.training.distorted import steps_of, with_distorted
from updater.training.pools import with_crop_features

CPU = torch.device("cpu")


@pytest.fixture
def items(labelled):
    return labelled({"real": 6, "blocky": 4})


def test_copies_keep_label_source_and_group_and_what_is_there_stays_as_it_is(items):
    found = with_distorted(items, Distorted(0.5), frozenset(), 0, CPU)
    assert len(found) == 15
    assert len(set(found.ids)) == 15
    back = found.take(range(10))
    assert back.ids == items.ids
    assert (back.crops == items.crops).all()
    of = {one: number for number, one in enumerate(items.ids)}
    for number in range(10, 15):
        own = of[found.ids[number].partition("-distorted")[0]]
        copied = found.take([number])
        assert copied.families[0] == items.families[own]
        assert copied.groups[0] == items.groups[own]
        assert copied.sources[0] == items.sources[own]
        assert copied.crops.shape == (2, 64, 64, 3)
        assert (np.sort(copied.crops, axis=None) != np.sort(items.take([own]).crops, axis=None)).any()


def test_a_share_above_1_copies_each_item_so_often_to_within_one(items):
    found = with_distorted(items, Distorted(2.5), frozenset(), 0, CPU)
    times = [sum(one.startswith(f"{own}-distorted") for one in found.ids) for own in items.ids]
    assert sum(times) == 25
    assert set(times) == {2, 3}


def test_the_seed_decides_which_items_and_by_what(items):
    once, again, other = (with_distorted(items, Distorted(0.5), frozenset(), seed, CPU) for seed in (0, 0, 1))
    assert once.ids == again.ids != other.ids
    assert (once.crops == again.crops).all()


def test_without_a_share_or_without_a_distortion_that_is_left_nothing_is_added(items):
    every = frozenset().union(*(DISTORTIONS[name].kinds for name in DEEPERFORENSICS))
    assert with_distorted(items, Distorted(0), frozenset(), 0, CPU) is items
    assert with_distorted(items, Distorted(1), every, 0, CPU) is items


def test_copies_get_the_forensic_features_of_what_they_show(items):
    featured = with_crop_features(items, CPU)
    found = with_distorted(featured, Distorted(0.5, "sing"), frozenset(), 0, CPU)
    anew = with_crop_features(with_distorted(items, Distorted(0.5, "sing"), frozenset(), 0, CPU), CPU)
    assert found.crop_features.shape == anew.crop_features.shape
    np.testing.assert_allclose(found.crop_features, anew.crop_features, atol=1e-4)


COUNTS = {"sing": 1, "rand": 1, "mix2": 2, "mix3": 3, "mix4": 4}


@pytest.mark.parametrize(("strength", "count"), COUNTS.items())
def test_a_strength_is_so_many_different_ones_of_the_seven_at_drawn_levels_or_the_highest(strength, count):
    rng = np.random.default_rng(0)
    seen = [steps_of(rng, strength, frozenset()) for _ in range(200)]
    assert all(len({step.name for step in one}) == count for one in seen)
    assert {step.name for one in seen for step in one} == set(DEEPERFORENSICS)
    assert {step.level for one in seen for step in one} == ({5} if strength == "sing" else {1, 2, 3, 4, 5})


def test_kinds_that_are_measured_as_unseen_stay_out_and_a_mix_has_no_more_than_are_left():
    rng = np.random.default_rng(0)
    without = frozenset({"smoothing", "compression", "noise"})
    seen = [steps_of(rng, "mix4", without) for _ in range(100)]
    assert {step.name for one in seen for step in one} == {"CS", "CC", "BW"}
    assert all(len(one) == 3 for one in seen)
    assert isinstance(seen[0][0], Step)
