"""Other looks of a picture are the same for all of it, so that nothing in it becomes a forgery."""

import numpy as np

from updater.localizer.looks import looked_otherwise

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
