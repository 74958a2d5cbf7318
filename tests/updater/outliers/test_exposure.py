import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater import filters
from updater.benchmark.synthetic.families import FAMILIES
from updater.data.training_data import LabelledCrops
from updater.outliers import exposure, pseudo_forgeries
from updater.outliers.exposure import Exposure, expose
from updater.outliers.pseudo_forgeries import MASK_KIND, OPERATIONS, Operation, pseudo_forge


def items(count=6):
    return LabelledCrops(
        ids=tuple(f"item-{i}" for i in range(count)),
        families=("real",) * (count - 1) + ("blended",),
        sources=tuple(f"source-{i}" for i in range(count)),
        groups=tuple(f"item-{i}" for i in range(count)),
        crops=np.random.default_rng(0).integers(40, 200, (2 * count, 64, 64, 3)).astype(np.uint8),
        starts=(np.arange(count + 1) * 2).astype(np.int64),
    )


def test_as_many_as_asked_for_with_the_crops_of_the_items_they_come_from():
    pseudo = expose(items(), 9, frozenset(), seed=1)
    assert len(pseudo) == 9
    assert pseudo.crops.shape == (18, 64, 64, 3)
    assert set(pseudo.families) == {"pseudo"}
    assert pseudo.starts[-1] == 18


def test_a_seed_repeats_them_and_another_does_not():
    first, again, other = (expose(items(), 4, frozenset(), seed).crops for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_asking_for_fewer_gives_the_first_ones():
    few, many = expose(items(), 3, frozenset(), 5), expose(items(), 6, frozenset(), 5)
    assert np.array_equal(few.crops, many.crops[:6])


def test_small_classes_are_drawn_as_often_as_large_ones():
    assert 15 <= expose(items(), 60, frozenset(), 3).sources.count("source-5") <= 45


def test_leaving_kinds_out_changes_what_is_made():
    without = expose(items(), 8, frozenset({"resampling", "smoothing", "noise"}), 7).crops
    assert not np.array_equal(expose(items(), 8, frozenset(), 7).crops, without)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_compression_is_left_out_with_its_kind_alone(family, monkeypatch):
    qualities = []

    def save(image, quality):
        qualities.append(quality)
        return image

    monkeypatch.setattr(exposure, "compress_jpeg", save)
    without = FAMILIES[family].kinds
    expose(items(), 4, without, seed=1)
    Exposure(items(), without).anew(np.random.default_rng(0))
    assert len(qualities) == (0 if "compression" in without else 9)
    assert all(80 <= quality < 97 for quality in qualities)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_pseudo_forgery_has_no_operation_of_a_left_out_familys_kinds(family, monkeypatch):
    kinds = set()
    for name, operation in OPERATIONS.items():

        def spy(rng, pixels, operation=operation):
            kinds.update(operation.kinds)
            return operation.apply(rng, pixels)

        monkeypatch.setitem(OPERATIONS, name, Operation(operation.kinds, spy))
    source = Exposure(items(), FAMILIES[family].kinds)
    for seed in range(60):
        source.anew(np.random.default_rng(seed))
    assert kinds
    assert not kinds & FAMILIES[family].kinds


def test_a_fresh_one_is_one_crop_and_follows_from_its_generator():
    source = Exposure(items(), frozenset())
    crop, again, other = (source.anew(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert crop.shape == (1, 64, 64, 3)
    assert np.array_equal(crop, again)
    assert not np.array_equal(crop, other)


# Pseudo-forgeries: random, repeatable, and never of a kind that is left out.
PICTURE = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
KINDS = sorted(set().union(*(operation.kinds for operation in OPERATIONS.values())))


@pytest.fixture
def used(monkeypatch):
    """Names of the operations that were applied, and "mask" where one was drawn for a whole chain."""
    names = []
    for name, operation in OPERATIONS.items():

        def spy(rng, pixels, name=name, apply=operation.apply):
            names.append(name)
            inner = len(names)
            result = apply(rng, pixels)
            # What an operation draws inside itself belongs to it.
            del names[inner:]
            return result

        monkeypatch.setitem(OPERATIONS, name, Operation(operation.kinds, spy))
    ellipse = pseudo_forgeries.feathered_ellipse

    def masked(*arguments):
        names.append("mask")
        return ellipse(*arguments)

    monkeypatch.setattr(pseudo_forgeries, "feathered_ellipse", masked)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_operation_of_a_left_out_family_is_used_and_no_mask_when_blending_is_out(family, used):
    without = FAMILIES[family].kinds
    for seed in range(120):
        pseudo_forge(np.random.default_rng(seed), PICTURE, without)
    kinds = {name: OPERATIONS[name].kinds for name in set(used) - {"mask"}}
    assert {name for name, own in kinds.items() if own & without} == set()
    assert set(kinds) == {name for name, o in OPERATIONS.items() if not o.kinds & without}
    assert ("mask" in used) == (MASK_KIND not in without)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_a_family_is_a_kind_of_some_operation(family):
    # A family whose word no operation uses would be "left out" without leaving anything out.
    assert FAMILIES[family].kinds <= set(KINDS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_changes_a_stack_and_keeps_its_shape_and_type(name):
    stack = np.stack([PICTURE[:96, :96], PICTURE[:96, 32:128]]).astype(np.float32)
    changed = OPERATIONS[name].apply(np.random.default_rng(1), stack)
    assert changed.shape == stack.shape
    assert changed.dtype == np.float32
    assert np.isfinite(changed).all()
    assert np.abs(changed - stack).max() > 1


@given(seed=st.integers(0, 2**32), without=st.sets(st.sampled_from(KINDS), max_size=4))
def test_the_same_generator_gives_the_same_pseudo_forgery(seed, without):
    first = pseudo_forge(np.random.default_rng(seed), PICTURE, frozenset(without))
    second = pseudo_forge(np.random.default_rng(seed), PICTURE, frozenset(without))
    assert first.dtype == np.uint8
    assert first.shape == PICTURE.shape
    assert np.array_equal(first, second)


def test_leaving_out_every_kind_is_an_error():
    with pytest.raises(ValueError, match="no operation is left"):
        pseudo_forge(np.random.default_rng(0), PICTURE, frozenset(KINDS))


def test_the_median_is_scipys_median():
    expected = pytest.importorskip("scipy.ndimage").median_filter(PICTURE, (3, 3, 1), mode="mirror")
    assert np.array_equal(filters.median(PICTURE.astype(np.float32)), expected)


@pytest.mark.parametrize("axis", [filters.ROWS, filters.COLUMNS])
def test_taps_are_scipys_correlation(axis):
    taps = np.array([0.1, 0.5, -0.2, 0.4, 0.2], np.float32)
    pixels = PICTURE.astype(np.float32)
    expected = pytest.importorskip("scipy.ndimage").correlate1d(pixels, taps, axis=axis, mode="mirror")
    assert np.allclose(filters.taps_along(pixels, taps, axis), expected, atol=1e-3)


@pytest.mark.parametrize(("down", "across"), [(0, 0), (3, 5), (7, 1)])
def test_the_jpeg_grid_lies_where_it_was_asked_for(down, across):
    noise = np.random.default_rng(4).normal(128, 30, (96, 96, 1)).repeat(3, 2).astype(np.float32)
    block = filters.jpeg(noise, 30, down, across)[..., 0]
    steps = np.abs(np.diff(block, axis=0)).mean(1)
    by_phase = [steps[phase::8].mean() for phase in range(8)]
    # The step from one block's last row to the next one's first is the largest.
    assert (int(np.argmax(by_phase)) + 1) % 8 == down % 8
    steps = np.abs(np.diff(block, axis=1)).mean(0)
    assert (int(np.argmax([steps[phase::8].mean() for phase in range(8)])) + 1) % 8 == across % 8
