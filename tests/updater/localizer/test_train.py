"""A localizer learns where reals were forged, by pseudo-forgeries alone and with known masks."""

import dataclasses

import numpy as np
import pytest
import torch

from detector.release.crop_graphs import CELLS
from updater.data.training_data import LabelledCrops
from updater.localizer import train as training
from updater.localizer.calibrate import THRESHOLD, CellPrediction, calibrate, fit_cut, reals_marked
from updater.localizer.train import MaskedCrops, looked_otherwise, pseudo_forged, train_localizer

pytestmark = pytest.mark.slow


def pictures(count, families=("real",), seed=0, px=64, each=2):
    """Smooth pictures with noise of their own; every one that is not real lacks it in its left half."""
    rng = np.random.default_rng(seed)
    named = [families[number % len(families)] for number in range(count)]
    crops, cells = [], []
    for family in named:
        level = rng.uniform(60, 200, (1, 1, 1, 3))
        noise = rng.normal(0, rng.uniform(4, 9), (each, px, px, 3))
        forged = np.zeros((each, px // 8, px // 8), np.float32)
        if family != "real":
            noise[:, :, : px // 2] = 0
            forged[:, :, : px // 16] = 1
        crops.append(np.clip(level + noise, 0, 255).astype(np.uint8))
        cells.append(forged)
    names = tuple(str(number) for number in range(count))
    starts = each * np.arange(count + 1)
    items = LabelledCrops(names, tuple(named), names, names, np.concatenate(crops), starts)
    return MaskedCrops(items, np.concatenate(cells))


REALS = pictures(12).items
KNOWN = pictures(16, ("wiped", "wiped", "real"), seed=1)


@pytest.fixture(scope="module")
def learnt():
    return train_localizer(REALS, KNOWN, seed=0, steps=40)


def test_known_masks_are_learnt_and_real_pictures_stay_unmarked(learnt):
    held = pictures(30, ("wiped", "real"), seed=5)
    reals = held.items.take(range(1, 30, 2))
    told = []
    graph = calibrate(learnt, reals, held, seed=0, progress=lambda *at: told.append(at))
    assert told == [(number, 30) for number in range(1, 31)]
    assert reals_marked(graph, reals) == 0
    assert reals_marked(graph, pictures(12, seed=7).items) <= 0.1
    test = pictures(12, ("wiped", "real"), seed=9)
    of_picture = torch.arange(12).repeat_interleave(2)
    with torch.inference_mode():
        cells = graph(torch.from_numpy(np.asarray(test.items.crops)), of_picture)[CELLS].numpy()
    truth = test.cells.reshape(12, -1)
    said = cells.reshape(12, -1)
    assert said[truth == 1].mean() > 2 * said[truth == 0].mean()
    assert (said[::2][truth[::2] == 1] >= THRESHOLD).mean() > 0.5


def test_reals_alone_are_enough_and_a_seed_repeats_it():
    state = torch.random.get_rng_state()
    one, again, other = (train_localizer(REALS, None, seed=seed, steps=2) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [network.corrected.weight for network in (one, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not one.training


def test_kinds_that_are_left_out_reach_every_pseudo_forgery(monkeypatch):
    asked = []
    forge = training.forge_locally
    monkeypatch.setattr(
        training,
        "forge_locally",
        lambda rng, crops, without, share: asked.append(without) or forge(rng, crops, without, share),
    )
    without = frozenset({"blending", "compression"})
    train_localizer(REALS, None, without=without, steps=2)
    calibrate(train_localizer(REALS, KNOWN, without=without, steps=1), REALS, None, without=without)
    assert set(asked) == {without}


def test_pictures_are_turned_with_their_cells():
    items, cells = KNOWN.items, KNOWN.cells
    crops = np.asarray(items.crops[:2])
    seen = set()
    for seed in range(60):
        turned, where = training._turn_at_random(np.random.default_rng(seed), crops, cells[:2])
        # The forged half has no noise, wherever it comes to lie.
        assert np.array_equal(turned.reshape(2, 8, 8, 8, 8, 3).std((2, 4)).max(-1) == 0, where == 1)
        seen.add(where.tobytes())
    assert len(seen) == 4


def test_cells_of_a_pseudo_forgery_are_the_share_of_each_that_is_forged():
    crops = np.asarray(REALS.crops[:2])
    for seed in range(20):
        forged, cells = pseudo_forged(np.random.default_rng(seed), crops, frozenset({"compression"}))
        assert cells.shape == (2, 8, 8)
        assert forged.shape == crops.shape
        assert (forged == crops).all(-1).reshape(2, 8, 8, 8, 8).all((2, 4))[cells == 0].all()


def test_without_reals_nothing_can_be_learnt_and_one_line_says_so():
    with pytest.raises(ValueError, match="learns from real pictures, and there are none"):
        train_localizer(REALS.take([]), KNOWN, steps=1)
    with pytest.raises(ValueError, match="needs held-back real pictures, and there are none"):
        calibrate(train_localizer(REALS, None, steps=1), REALS.take([]), None)


def test_three_in_a_hundred_reals_are_marked_at_most_and_most_of_what_is_forged():
    rng = np.random.default_rng(0)
    shape = (2, 16, 16)

    def said(strength):
        forged = np.zeros(shape, bool)
        forged[:, :6, :6] = strength > 0
        cells = (rng.normal(-3, 1, shape) + strength * forged).astype(np.float32)
        return CellPrediction(cells, float(np.log(np.exp(cells).mean())), forged)

    reals, forgeries = [said(0) for _ in range(200)], [said(4) for _ in range(50)]
    cut, slope, offset = fit_cut(reals, forgeries)

    def marked(one):
        sure = 1 / (1 + np.exp(-(slope * one.evidence + offset)))
        return sure / (1 + np.exp(cut - one.cells)) >= THRESHOLD

    assert np.mean([marked(real).mean() > 0.02 for real in reals]) <= 0.03
    overlaps = [
        (marked(forgery) & forgery.forged).sum() / (marked(forgery) | forgery.forged).sum()
        for forgery in forgeries
    ]
    assert np.mean(overlaps) > 0.6


def test_no_more_than_the_crops_of_one_picture_are_read_at_a_time(learnt):
    held = pictures(6)

    class Counted:
        """Rows that say how many are asked for at a time."""

        most = 0

        def __getitem__(self, rows):
            self.most = max(self.most, len(rows))
            return held.items.crops[rows]

    rows = Counted()
    items = dataclasses.replace(held.items, crops=rows)
    reals_marked(calibrate(learnt, items, None), items)
    assert rows.most == 2


RNG = np.random.default_rng(0)
CROPS = RNG.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
NO_NOISE = frozenset({"noise"})


def test_levels_that_are_equal_in_a_picture_stay_equal_wherever_they_lie():
    colours = RNG.integers(0, 256, (9, 3), dtype=np.uint8)
    where = RNG.integers(0, 9, (2, 32, 32))
    for seed in range(60):
        found = looked_otherwise(np.random.default_rng(seed), colours[where], NO_NOISE)
        assert found.shape == (2, 32, 32, 3)
        assert found.dtype == np.uint8
        for colour in range(9):
            assert (np.ptp(found[where == colour].astype(int), axis=0) == 0).all()


def test_noise_is_as_strong_in_each_part_and_at_most_three_levels():
    flat = np.full((2, 64, 64, 3), 120, np.uint8)
    deviations = []
    for seed in range(200):
        found = looked_otherwise(np.random.default_rng(seed), flat, frozenset({"tone"})).astype(float)
        if np.ptp(found):
            parts = found.reshape(2, 2, 32, 64, 3).std((0, 2, 3, 4))
            assert parts.max() < 1.15 * parts.min() + 0.05
            deviations.append(found.std())
    assert 0.2 < len(deviations) / 200 < 0.4
    assert max(deviations) < 3.2


def test_colours_contrast_and_grain_change_by_chance_and_some_pictures_stay():
    found = [looked_otherwise(np.random.default_rng(seed), CROPS, frozenset()) for seed in range(200)]
    assert 0.1 < np.mean([np.array_equal(one, CROPS) for one in found]) < 0.4
    grey = np.mean(
        [
            not np.ptp(looked_otherwise(np.random.default_rng(seed), CROPS, NO_NOISE), axis=3).any()
            for seed in range(200)
        ]
    )
    assert 0.08 < grey < 0.25


def test_kinds_that_are_left_out_are_done_to_no_picture():
    halves = np.repeat(np.array([60, 200], np.uint8), 16)[None, :, None, None].repeat(2, 0)
    halves = np.broadcast_to(halves, (2, 32, 32, 3))
    for seed in range(60):
        untouched = looked_otherwise(np.random.default_rng(seed), halves, frozenset({"noise", "tone"}))
        assert np.array_equal(untouched, halves)
        noisy = looked_otherwise(np.random.default_rng(seed), halves, frozenset({"tone"})).astype(float)
        assert abs(noisy[:, 16:].mean() - noisy[:, :16].mean() - 140) < 1
