"""Pseudo-forgeries behind masks: they lie where they say, and use no kind that is left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.benchmark.synthetic.families import FAMILIES
from updater.outliers import local_forgeries
from updater.outliers.local_forgeries import (
    AREA,
    forge_locally,
    kept_behind,
    process_crops,
    random_mask,
    saved_again,
)
from updater.outliers.pseudo_forgeries import OPERATIONS, Operation

CROPS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8).repeat(8, 1).repeat(8, 2)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_outside_of_the_mask_nothing_is_changed(seed, count):
    forged, masks = forge_locally(np.random.default_rng(seed), CROPS[:count], frozenset())
    assert forged.shape == (count, 64, 64, 3)
    assert forged.dtype == np.uint8
    assert masks.shape == (count, 64, 64)
    assert masks.min() >= 0
    assert masks.max() == 1 or count == 3  # the fourth tile of a square may hold all of it
    assert np.array_equal(forged[masks == 0], CROPS[:count][masks == 0])


def test_a_fifth_of_the_pictures_are_processed_whole_by_one_operation(monkeypatch):
    used = []
    for name, operation in OPERATIONS.items():

        def spy(rng, pixels, name=name, apply=operation.everywhere or operation.apply):
            used.append(name)
            return apply(rng, pixels)

        monkeypatch.setitem(OPERATIONS, name, Operation(operation.kinds, spy, spy))
    without = frozenset({"smoothing", "noise"})
    rng = np.random.default_rng(3)
    kept = [process_crops(rng, CROPS, without) is CROPS for _ in range(200)]
    assert 0.7 < np.mean(kept) < 0.9
    assert len(used) == 200 - sum(kept)
    assert set(used) == {name for name, operation in OPERATIONS.items() if not operation.kinds & without}


def test_a_mask_goes_over_the_crops_of_a_picture_as_over_a_square_of_them():
    rng = np.random.default_rng(1)
    masks = [forge_locally(rng, CROPS, frozenset()).masks for _ in range(40)]
    assert sum(int((mask.max((1, 2)) > 0).sum() > 1) for mask in masks) > 10


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_operation_of_a_left_out_family_is_used_and_the_mask_stays(family, monkeypatch):
    used = set()
    for name, operation in OPERATIONS.items():

        def spy(rng, pixels, name=name, apply=operation.everywhere or operation.apply):
            used.add(name)
            return apply(rng, pixels)

        monkeypatch.setitem(OPERATIONS, name, Operation(operation.kinds, spy, spy))
    without = FAMILIES[family].kinds
    generators = map(np.random.default_rng, range(150))
    masked = [forge_locally(rng, CROPS[:1], without).masks.min() == 0 for rng in generators]
    assert used == {name for name, operation in OPERATIONS.items() if not operation.kinds & without}
    # On a single crop, a mask of 4 to 35 % of it never is all of it.
    assert all(masked)


def test_a_mask_may_cover_more_than_half_of_a_picture_where_that_is_asked():
    rng = np.random.default_rng(4)
    usual = [forge_locally(rng, CROPS, frozenset()).masks.mean() for _ in range(40)]
    wide = [forge_locally(rng, CROPS, frozenset(), (0.04, 0.6)).masks.mean() for _ in range(40)]
    assert max(usual) < 0.37
    assert 0.5 < max(wide) < 0.62
    assert min(wide) < 0.2


def test_what_draws_a_part_of_its_own_acts_on_everything_behind_a_mask():
    pixels = CROPS.astype(np.float32)
    for operation in OPERATIONS.values():
        if operation.everywhere is not None:
            changed = operation.everywhere(np.random.default_rng(0), pixels)
            # Of the pixels of each border, most: an ellipse or a rectangle inside would leave them alone.
            assert (changed != pixels)[:, [0, -1]].mean() > 0.8


def test_saving_again_is_left_out_with_compression_and_else_done_nine_times_in_ten():
    rng = np.random.default_rng(2)
    changed = [not np.array_equal(saved_again(rng, CROPS, frozenset()), CROPS) for _ in range(100)]
    assert 0.8 < np.mean(changed) < 0.98
    assert all(saved_again(rng, CROPS, frozenset({"compression"})) is CROPS for _ in range(30))


def test_leaving_out_every_local_kind_is_an_error():
    everything = frozenset().union(*(operation.kinds for operation in OPERATIONS.values()))
    with pytest.raises(ValueError, match="no operation is left"):
        forge_locally(np.random.default_rng(0), CROPS, everything)


def test_the_module_draws_its_masks_by_the_law_of_masks(monkeypatch):
    asked = []
    monkeypatch.setattr(
        local_forgeries,
        "random_mask",
        lambda rng, height, width, share: (
            asked.append((height, width)) or np.ones((height, width, 1), np.float32)
        ),
    )
    for count, shape in ((1, (64, 64)), (2, (64, 128)), (4, (128, 128)), (9, (192, 192))):
        asked.clear()
        crops = np.resize(CROPS, (count, 64, 64, 3))
        for seed in range(4):
            forge_locally(np.random.default_rng(seed), crops, frozenset({"resampling"}))
        assert set(asked) == {shape}


RNG = np.random.default_rng(0)


SCENE = RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8)


FORGED = RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8)


@given(seed=st.integers(0, 2**32), height=st.integers(96, 400), width=st.integers(96, 400))
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
def test_what_lies_outside_of_a_mask_keeps_its_pixels_and_what_lies_inside_is_the_forgery(seed):
    mask = random_mask(np.random.default_rng(seed), 40, 56)
    kept = kept_behind(mask, SCENE, FORGED)
    assert np.array_equal(kept[mask[..., 0] == 0], SCENE[mask[..., 0] == 0])
    assert np.array_equal(kept[mask[..., 0] == 1], FORGED[mask[..., 0] == 1])
    low, high = np.minimum(SCENE, FORGED), np.maximum(SCENE, FORGED)
    assert ((kept >= low) & (kept <= high)).all()


def test_a_whole_mask_and_an_empty_one_are_the_forgery_and_the_picture():
    whole = np.ones((40, 56, 1), np.float32)
    assert np.array_equal(kept_behind(whole, SCENE, FORGED), FORGED)
    assert np.array_equal(kept_behind(0 * whole, SCENE, FORGED), SCENE)
    assert np.array_equal(kept_behind(whole, SCENE, SCENE), SCENE)


def test_both_shapes_come_and_they_lie_everywhere():
    masks = [random_mask(np.random.default_rng(seed), 96, 96)[..., 0] > 0.5 for seed in range(2000)]
    filled = [
        mask[np.ix_(mask.any(1), mask.any(0))].mean()  # of the box around it
        for mask in masks
    ]
    assert 0.35 < np.mean(np.array(filled) > 0.95) < 0.65
    assert np.any(masks, axis=0)[4:-4, 4:-4].all()
