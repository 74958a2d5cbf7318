"""Masks: within the picture, of the asked area, and what they mean for a picture."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from updater.outliers.masks import AREA, kept_behind, random_mask

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8)
FORGED = RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8)


@given(seed=st.integers(0, 2**32), height=st.integers(96, 400), width=st.integers(96, 400))
@settings(max_examples=60, deadline=None)
def test_a_mask_covers_4_to_35_percent_with_a_narrow_edge(seed, height, width):
    mask = random_mask(np.random.default_rng(seed), height, width)
    assert mask.shape == (height, width, 1)
    assert mask.dtype == np.float32
    assert mask.min() == 0
    assert mask.max() == 1
    assert AREA[0] - 0.01 <= mask.mean() <= AREA[1] + 0.01
    # An edge of at most 2 px on each side of a shape: its pixels are few against its area.
    assert ((mask > 0) & (mask < 1)).mean() < 4 * 2 * (height + width) / (height * width)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_what_lies_outside_of_a_mask_keeps_its_pixels_and_what_lies_inside_is_the_forgery(seed):
    mask = random_mask(np.random.default_rng(seed), 40, 56)
    kept = kept_behind(mask, PICTURE, FORGED)
    assert np.array_equal(kept[mask[..., 0] == 0], PICTURE[mask[..., 0] == 0])
    assert np.array_equal(kept[mask[..., 0] == 1], FORGED[mask[..., 0] == 1])
    low, high = np.minimum(PICTURE, FORGED), np.maximum(PICTURE, FORGED)
    assert ((kept >= low) & (kept <= high)).all()


def test_a_whole_mask_and_an_empty_one_are_the_forgery_and_the_picture():
    whole = np.ones((40, 56, 1), np.float32)
    assert np.array_equal(kept_behind(whole, PICTURE, FORGED), FORGED)
    assert np.array_equal(kept_behind(0 * whole, PICTURE, FORGED), PICTURE)
    assert np.array_equal(kept_behind(whole, PICTURE, PICTURE), PICTURE)


def test_both_shapes_come_and_they_lie_everywhere():
    masks = [random_mask(np.random.default_rng(seed), 96, 96)[..., 0] > 0.5 for seed in range(2000)]
    filled = [
        mask[np.ix_(mask.any(1), mask.any(0))].mean()  # of the box around it
        for mask in masks
    ]
    assert 0.35 < np.mean(np.array(filled) > 0.95) < 0.65
    assert np.any(masks, axis=0)[4:-4, 4:-4].all()
