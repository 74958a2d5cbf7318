import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater import filters
from updater.benchmark.synthetic.families import FAMILIES
from updater.data.training_data import LabelledCrops
from updater.outliers import exposure, local_forgeries, pseudo_forgeries
from updater.outliers.exposure import Exposure, expose
from updater.outliers.local_forgeries import (
    AREA,
    forge_locally,
    kept_behind,
    process_crops,
    random_mask,
    saved_again,
)
from updater.outliers.pseudo_forgeries import MASK_KIND, OPERATIONS, Operation, pseudo_forge


def items(count=6):
    rng = np.random.default_rng(0)
    starts = np.arange(count + 1) * 2
    return LabelledCrops(
        ids=tuple(f"item-{i}" for i in range(count)),
        families=("real",) * (count - 1) + ("blended",),
        sources=tuple(f"source-{i}" for i in range(count)),
        groups=tuple(f"item-{i}" for i in range(count)),
        crops=rng.integers(40, 200, (2 * count, 64, 64, 3)).astype(np.uint8),
        starts=starts.astype(np.int64),
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
    sources = expose(items(), 60, frozenset(), 3).sources
    assert 15 <= sources.count("source-5") <= 45


def test_leaving_kinds_out_changes_what_is_made():
    everything = expose(items(), 8, frozenset(), 7).crops
    without = expose(items(), 8, frozenset({"resampling", "smoothing", "noise"}), 7).crops
    assert not np.array_equal(everything, without)


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
    ndimage = pytest.importorskip("scipy.ndimage")
    expected = ndimage.median_filter(PICTURE, (3, 3, 1), mode="mirror")
    assert np.array_equal(filters.median(PICTURE.astype(np.float32)), expected)


@pytest.mark.parametrize("axis", [filters.ROWS, filters.COLUMNS])
def test_taps_are_scipys_correlation(axis):
    ndimage = pytest.importorskip("scipy.ndimage")
    taps = np.array([0.1, 0.5, -0.2, 0.4, 0.2], np.float32)
    pixels = PICTURE.astype(np.float32)
    expected = ndimage.correlate1d(pixels, taps, axis=axis, mode="mirror")
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


# Pseudo-forgeries behind masks: they lie where they say, and use no kind that is left out.
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
    several = sum(
        int((forge_locally(rng, CROPS, frozenset()).masks.max((1, 2)) > 0).sum() > 1) for _ in range(40)
    )
    assert several > 10


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
    masked = [
        forge_locally(np.random.default_rng(seed), CROPS[:1], without).masks.min() == 0 for seed in range(150)
    ]
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
    kept = [saved_again(rng, CROPS, frozenset({"compression"})) is CROPS for _ in range(30)]
    assert all(kept)


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
