import numpy as np
import pytest
from numpy.typing import NDArray

from updater.benchmark.synthetic.families import FAMILIES
from updater.data.training_data import LabelledCrops
from updater.filters import Pixels
from updater.outliers import exposure
from updater.outliers.exposure import Exposure, expose
from updater.outliers.pseudo_forgeries import OPERATIONS, Operation


def items(count: int = 6) -> LabelledCrops:
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


def test_as_many_as_asked_for_with_the_crops_of_the_items_they_come_from() -> None:
    pseudo = expose(items(), 9, frozenset(), seed=1)
    assert len(pseudo) == 9
    assert pseudo.crops.shape == (18, 64, 64, 3)
    assert set(pseudo.families) == {"pseudo"}
    assert pseudo.starts[-1] == 18


def test_a_seed_repeats_them_and_another_does_not() -> None:
    first, again, other = (expose(items(), 4, frozenset(), seed).crops for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_asking_for_fewer_gives_the_first_ones() -> None:
    few, many = expose(items(), 3, frozenset(), 5), expose(items(), 6, frozenset(), 5)
    assert np.array_equal(few.crops, many.crops[:6])


def test_small_classes_are_drawn_as_often_as_large_ones() -> None:
    sources = expose(items(), 60, frozenset(), 3).sources
    assert 15 <= sources.count("source-5") <= 45


def test_leaving_kinds_out_changes_what_is_made() -> None:
    everything = expose(items(), 8, frozenset(), 7).crops
    without = expose(items(), 8, frozenset({"resampling", "smoothing", "noise"}), 7).crops
    assert not np.array_equal(everything, without)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_compression_is_left_out_with_its_kind_alone(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    qualities: list[int] = []

    def save(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
        qualities.append(quality)
        return image

    monkeypatch.setattr(exposure, "compress_jpeg", save)
    without = FAMILIES[family].kinds
    expose(items(), 4, without, seed=1)
    Exposure(items(), without).anew(np.random.default_rng(0))
    assert len(qualities) == (0 if "compression" in without else 9)
    assert all(80 <= quality < 97 for quality in qualities)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_pseudo_forgery_has_no_operation_of_a_left_out_familys_kinds(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: set[str] = set()
    for name, operation in OPERATIONS.items():

        def spy(
            rng: np.random.Generator, pixels: Pixels, operation: Operation = operation
        ) -> NDArray[np.float32]:
            kinds.update(operation.kinds)
            return operation.apply(rng, pixels)

        monkeypatch.setitem(OPERATIONS, name, Operation(operation.kinds, spy))
    source = Exposure(items(), FAMILIES[family].kinds)
    for seed in range(60):
        source.anew(np.random.default_rng(seed))
    assert kinds
    assert not kinds & FAMILIES[family].kinds


def test_a_fresh_one_is_one_crop_and_follows_from_its_generator() -> None:
    source = Exposure(items(), frozenset())
    crop, again, other = (source.anew(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert crop.shape == (1, 64, 64, 3)
    assert np.array_equal(crop, again)
    assert not np.array_equal(crop, other)
