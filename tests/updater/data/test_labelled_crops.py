"""Every column of labelled crops is taken and joined as the items are."""

from dataclasses import fields, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from updater.data.stored_rows import stored
from updater.data.training_data import LabelledCrops

ALL = tuple(column.name for column in fields(LabelledCrops))
OPTIONAL = ("features", "crop_features", "pictures", "picture_features", "videos")
LACKING = st.sets(st.sampled_from(OPTIONAL))
COUNTS = st.lists(st.integers(1, 3), max_size=4)


def items_of(counts, first=0, on_disk=False):
    """Items of so many crops each, with every column there is; item i's values are i's and no other's."""
    names = tuple(f"{first + number}" for number in range(len(counts)))
    numbers = first + np.arange(len(counts))
    of_crops = 10 * np.repeat(numbers, counts) + np.concatenate(
        [np.arange(0), *map(np.arange, counts)]
    ).astype(np.int64)
    crops = np.broadcast_to(of_crops[:, None, None, None], (len(of_crops), 2, 2, 3)).astype(np.uint8)
    pictures = np.broadcast_to(numbers[:, None, None, None], (len(names), 3, 3, 3)).astype(np.uint8)
    return LabelledCrops(
        ids=names,
        families=tuple(f"family {name}" for name in names),
        sources=tuple(f"source {name}" for name in names),
        groups=tuple(f"group {name}" for name in names),
        crops=stored(crops) if on_disk and len(crops) else crops,
        starts=np.cumsum([0, *counts]).astype(np.int64),
        features=numbers[:, None].astype(np.float32),
        crop_features=of_crops[:, None].astype(np.float32),
        pictures=pictures,
        picture_features=-numbers[:, None].astype(np.float32),
        videos=numbers % 2 == 0,
    )


def same(some, others):
    for name in ALL:
        one, other = getattr(some, name), getattr(others, name)
        if one is None or other is None:
            assert one is other, name
        else:
            assert np.array_equal(one[:], other[:]), name


def test_every_column_is_filled_by_the_items_of_these_tests():
    assert all(getattr(items_of([1]), name) is not None for name in ALL)


@given(counts=st.lists(COUNTS, min_size=1, max_size=3), on_disk=st.booleans(), data=st.data())
def test_what_is_taken_of_joined_parts_is_what_is_taken_of_the_whole(counts, on_disk, data):
    whole = items_of([count for part in counts for count in part])
    begins = np.cumsum([0, *map(len, counts)])
    parts = [items_of(part, begins[number], on_disk) for number, part in enumerate(counts)]
    joined = LabelledCrops.join(parts)
    same(joined, whole)
    rows = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6) if len(whole) else st.just([]))
    same(joined.take(rows), LabelledCrops.join([whole.take([row]) for row in rows] or [whole.take([])]))
    for number, part in enumerate(parts):
        same(joined.take(range(begins[number], begins[number + 1])), part)


@given(first=COUNTS, second=COUNTS, lacking=LACKING)
def test_a_column_that_some_items_lack_is_left_out_whole_and_one_without_items_changes_nothing(
    first, second, lacking
):
    plain, other = items_of(first), items_of(second, len(first))
    some = replace(plain, **dict.fromkeys(lacking))
    joined = LabelledCrops.join([some, other])
    for name in OPTIONAL:
        left_out = name in lacking and bool(first or not second)
        assert (getattr(joined, name) is None) == left_out, name
    none = items_of([])
    same(LabelledCrops.join([none, plain, none, other, none]), LabelledCrops.join([plain, other]))
