import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memory.herding import herd, shares
from memory.shelves import split_of

FEATURES = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 25), st.integers(1, 5)), elements=st.floats(-10, 10, width=32)
)


@given(FEATURES, st.integers(0, 30), st.integers(0, 30))
def test_a_shorter_herd_begins_the_longer_one(features: np.ndarray, few: int, more: int) -> None:
    few, more = sorted((few, more))
    np.testing.assert_array_equal(herd(features, few), herd(features, more)[:few])


@given(FEATURES, st.integers(0, 30))
def test_a_herd_takes_each_row_at_most_once(features: np.ndarray, count: int) -> None:
    picked = herd(features, count)
    assert len(picked) == len(set(picked.tolist())) == min(count, len(features))


@given(FEATURES, st.integers(1, 4), st.data())
def test_no_source_gets_more_than_its_cap(features: np.ndarray, cap: int, data: st.DataObject) -> None:
    sources = data.draw(st.lists(st.sampled_from("ab"), min_size=len(features), max_size=len(features)))
    chosen = [sources[i] for i in herd(features, len(features), sources, cap)]
    assert all(chosen.count(s) == min(cap, sources.count(s)) for s in "ab")


def test_every_pick_is_the_one_that_brings_the_herds_mean_nearest() -> None:
    features = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    phi = features / np.linalg.norm(features, axis=1, keepdims=True)
    picked = herd(features, 12).tolist()
    for k in range(12):
        errors = {
            i: np.linalg.norm(phi.mean(0) - phi[[*picked[:k], i]].mean(0))
            for i in range(30)
            if i not in picked[:k]
        }
        assert min(errors, key=errors.__getitem__) == picked[k]


def test_a_herd_stands_for_the_mean_better_than_chance() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(200, 8)).astype(np.float32) + 1
    phi = features / np.linalg.norm(features, axis=1, keepdims=True)

    def error(rows: np.ndarray) -> float:
        return float(np.linalg.norm(phi[rows].mean(0) - phi.mean(0)))

    assert error(herd(features, 10)) < min(error(rng.permutation(200)[:10]) for _ in range(20))


CLASSES = st.dictionaries(st.text(max_size=5), st.integers(0, 3000), max_size=20)


@given(CLASSES, st.integers(0, 5000))
def test_a_budget_is_used_up_or_everything_is_kept(available: dict[str, int], budget: int) -> None:
    places = shares(available, budget)
    assert places.keys() == available.keys()
    assert sum(places.values()) == min(budget, sum(available.values()))
    assert all(0 <= places[name] <= available[name] for name in available)


@given(CLASSES, st.integers(0, 5000))
def test_who_gets_less_than_it_has_gets_as_much_as_any_other_but_for_one_place(
    available: dict[str, int], budget: int
) -> None:
    places = shares(available, budget)
    short = [places[name] for name in places if places[name] < available[name]]
    assert all(place >= max(places.values()) - 1 for place in short)


@given(CLASSES, st.integers(0, 5000), st.integers(0, 100))
def test_a_larger_budget_takes_no_place_away(available: dict[str, int], budget: int, more: int) -> None:
    before, after = shares(available, budget), shares(available, budget + more)
    assert all(after[name] >= before[name] for name in available)


@given(CLASSES, st.integers(0, 5000), st.randoms())
def test_the_places_follow_from_the_counts_and_not_from_their_order(
    available: dict[str, int], budget: int, shuffled: random.Random
) -> None:
    names = list(available)
    shuffled.shuffle(names)
    assert shares({name: available[name] for name in names}, budget) == shares(available, budget)


def test_a_large_class_gets_the_places_that_small_ones_leave() -> None:
    fakes = {f"family-{i}": 66 for i in range(7)}
    assert shares({"real": 600} | fakes, 1500) == {"real": 600} | fakes
    assert shares({"real": 2000} | fakes, 1500) == {"real": 1500 - 7 * 66} | fakes


def test_1500_places_for_14_classes_stay_1500() -> None:
    places = shares(dict.fromkeys(map(str, range(14)), 900), 1500)
    assert sum(places.values()) == 1500
    assert set(places.values()) == {107, 108}


def test_groups_fall_60_20_20_and_always_on_the_same_side() -> None:
    splits = [split_of(f"group-{i}") for i in range(20_000)]
    assert splits == [split_of(f"group-{i}") for i in range(20_000)]
    for split, share in (("train", 0.6), ("calibration", 0.2), ("test", 0.2)):
        assert abs(splits.count(split) / len(splits) - share) < 0.02  # type: ignore[arg-type]


def test_the_split_of_a_name_is_fixed_for_ever() -> None:
    # SHA-256 of these begins with 3e, ca and de, of 256: 0.24, 0.79 and 0.87.
    assert [split_of(name) for name in "bai"] == ["train", "calibration", "test"]
