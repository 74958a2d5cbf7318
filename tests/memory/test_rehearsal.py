from collections import Counter

import numpy as np
import pytest
from exemplars import make_exemplar
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memory.labels import label, undo
from memory.records import split_of
from memory.rehearsal import choose_rehearsal, choose_resting, herd, ids_to_measure, shares
from memory.rows import select_exemplars

CLASSES = ("real", "gan")
TRAINED = "b"
"""A group whose items all go to the train split."""


@pytest.fixture
def taught(store, fill, make):
    """Remembers and labels items of the train split; returns their ids."""
    made = 0

    def teach(family, count, **changes):
        nonlocal made
        arrivals = [make(made + i, group=TRAINED, **changes) for i in range(count)]
        made += count
        fill(arrivals)
        label(store, [a.id for a in arrivals], family, "ada")
        return [a.id for a in arrivals]

    return teach


def newest(store):
    with store.read() as connection:
        return int(connection.exec_driver_sql("SELECT max(id) FROM labels").scalar_one())


def test_what_is_learnt_is_rehearsed_within_the_budget_and_what_is_new_is_learnt_in_whole(store, taught):
    real, gan = taught("real", 40), taught("gan", 6)
    learnt = newest(store)
    taught("real", 9)
    taught("blend", 9)
    choice = choose_rehearsal(store, CLASSES, learnt, 20, 1000)
    assert choice.kept == {"real": 14, "gan": 6}
    assert len(choice.resting) == 26
    assert choice.resting <= set(real)
    assert not choice.resting & set(gan)


def test_a_class_that_the_live_release_does_not_know_waits_in_whole(store, taught):
    taught("real", 10)
    taught("blend", 10)
    choice = choose_rehearsal(store, CLASSES, newest(store), 4, 1000)
    assert choice.kept == {"real": 4}
    assert len(choice.resting) == 6


def test_to_choose_takes_nothing_away_so_a_choice_is_as_good_as_the_one_before(store, taught):
    """A candidate that was rejected and a release that was rolled back chose too: no row, no crop is gone."""
    taught("real", 20)
    before, learnt = store.revision(), newest(store)
    choices = [choose_rehearsal(store, CLASSES, learnt, budget, 1000) for budget in (5, 2, 5)]
    assert choices[0] == choices[2]
    assert choices[0].resting < choices[1].resting
    assert choose_rehearsal(store, CLASSES, 0, 5, 1000).resting == frozenset()
    assert choose_rehearsal(store, CLASSES, learnt, 1000, 1000).resting == frozenset()
    assert store.revision() == before
    with store.read() as connection:
        shelf = select_exemplars(connection, shelf="rehearsal")
    assert len(shelf) == 20
    assert all(e.crops_digest for e in shelf)


def test_an_item_that_was_named_anew_since_is_new(store, taught):
    ids = taught("real", 10)
    learnt = newest(store)
    again = label(store, ids[:4], "gan", "ada")
    assert choose_rehearsal(store, CLASSES, learnt, 0, 1000).resting == set(ids[4:])
    undo(store, again, "ada")
    assert choose_rehearsal(store, CLASSES, learnt, 0, 1000).resting == set(ids)


def test_one_source_cannot_fill_a_class_and_its_places_go_to_others(store, taught):
    flood = taught("gan", 50, source="flood")
    taught("gan", 10, source="quiet")
    taught("real", 30)
    choice = choose_rehearsal(store, CLASSES, newest(store), 1000, 20)
    assert choice.kept == {"gan": 30, "real": 20}
    assert len(choice.resting & set(flood)) == 30
    assert Counter(i in flood for i in choice.resting) == {True: 30, False: 10}


def test_features_of_another_version_are_neither_compared_nor_left_out(store, taught):
    taught("gan", 10)
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE exemplars SET feature_version = 'old' WHERE id < 'media-0-5'")
    choice = choose_rehearsal(store, CLASSES, newest(store), 2, 1000)
    assert choice.kept == {"gan": 2}
    assert len(choice.resting) == 3
    assert all(i >= "media-0-5" for i in choice.resting)


@pytest.mark.slow
def test_a_row_that_was_dropped_with_its_label_is_left_alone(store, taught):
    ids = taught("gan", 6)
    with store.write() as connection:
        connection.exec_driver_sql(
            "UPDATE exemplars SET shelf = 'dropped', crops_digest = NULL WHERE id < 'media-0-3'"
        )
    choice = choose_rehearsal(store, CLASSES, newest(store), 1, 1000)
    assert choice.kept == {"gan": 1}
    assert choice.resting < set(ids[3:])


FEATURES = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 25), st.integers(1, 5)), elements=st.floats(-10, 10, width=32)
)


@given(FEATURES, st.integers(0, 30), st.integers(0, 30))
def test_a_shorter_herd_begins_the_longer_one(features, few, more):
    few, more = sorted((few, more))
    np.testing.assert_array_equal(herd(features, few), herd(features, more)[:few])


@given(FEATURES, st.integers(0, 30))
def test_a_herd_takes_each_row_at_most_once(features, count):
    picked = herd(features, count)
    assert len(picked) == len(set(picked.tolist())) == min(count, len(features))


@given(FEATURES, st.integers(1, 4), st.data())
def test_no_source_gets_more_than_its_cap(features, cap, data):
    sources = data.draw(st.lists(st.sampled_from("ab"), min_size=len(features), max_size=len(features)))
    chosen = [sources[i] for i in herd(features, len(features), sources, cap)]
    assert all(chosen.count(s) == min(cap, sources.count(s)) for s in "ab")


def test_every_pick_is_the_one_that_brings_the_herds_mean_nearest():
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


def test_a_herd_stands_for_the_mean_better_than_chance():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(200, 8)).astype(np.float32) + 1
    phi = features / np.linalg.norm(features, axis=1, keepdims=True)

    def error(rows):
        return float(np.linalg.norm(phi[rows].mean(0) - phi.mean(0)))

    assert error(herd(features, 10)) < min(error(rng.permutation(200)[:10]) for _ in range(20))


AVAILABLE = st.dictionaries(st.text(max_size=5), st.integers(0, 3000), max_size=20)


@given(AVAILABLE, st.integers(0, 5000))
def test_a_budget_is_used_up_or_everything_is_kept(available, budget):
    places = shares(available, budget)
    assert places.keys() == available.keys()
    assert sum(places.values()) == min(budget, sum(available.values()))
    assert all(0 <= places[name] <= available[name] for name in available)


@given(AVAILABLE, st.integers(0, 5000))
def test_who_gets_less_than_it_has_gets_as_much_as_any_other_but_for_one_place(available, budget):
    places = shares(available, budget)
    short = [places[name] for name in places if places[name] < available[name]]
    assert all(place >= max(places.values()) - 1 for place in short)


@given(AVAILABLE, st.integers(0, 5000), st.integers(0, 100))
def test_a_larger_budget_takes_no_place_away(available, budget, more):
    before, after = shares(available, budget), shares(available, budget + more)
    assert all(after[name] >= before[name] for name in available)


@given(AVAILABLE, st.integers(0, 5000), st.randoms())
def test_the_places_follow_from_the_counts_and_not_from_their_order(available, budget, shuffled):
    names = list(available)
    shuffled.shuffle(names)
    assert shares({name: available[name] for name in names}, budget) == shares(available, budget)


def test_a_large_class_gets_the_places_that_small_ones_leave():
    fakes = {f"family-{i}": 66 for i in range(7)}
    assert shares({"real": 600} | fakes, 1500) == {"real": 600} | fakes
    assert shares({"real": 2000} | fakes, 1500) == {"real": 1500 - 7 * 66} | fakes


def test_1500_places_for_14_classes_stay_1500():
    places = shares(dict.fromkeys(map(str, range(14)), 900), 1500)
    assert sum(places.values()) == 1500
    assert set(places.values()) == {107, 108}


def test_groups_fall_60_20_20_and_always_on_the_same_side():
    splits = [split_of(f"group-{i}") for i in range(20_000)]
    assert splits == [split_of(f"group-{i}") for i in range(20_000)]
    for split, share in (("train", 0.6), ("calibration", 0.2), ("test", 0.2)):
        assert abs(splits.count(split) / len(splits) - share) < 0.02


def test_the_split_of_a_name_is_fixed_for_ever():
    # SHA-256 of these begins with 3e, ca and de, of 256: 0.24, 0.79 and 0.87.
    assert [split_of(name) for name in "bai"] == ["train", "calibration", "test"]


def exemplar(number, family, source, group):
    held = {"shelf": "held-back", "family": family, "split": "test"}
    return make_exemplar(number, source=source, group=f"group-{group}", **held)


ITEM = st.tuples(st.sampled_from(["real", "gan", "blend"]), st.sampled_from(["a", "b"]), st.integers(0, 9))
SHELF = st.lists(ITEM, max_size=60).map(
    lambda items: [exemplar(number, *item) for number, item in enumerate(items)]
)


@given(SHELF, st.integers(0, 70))
def test_the_budget_is_spent_and_kept_and_half_of_it_is_for_reals(shelf, budget):
    chosen = ids_to_measure(shelf, budget)
    assert len(chosen) == min(budget, len(shelf))
    reals = [e for e in shelf if e.family == "real"]
    fakes = len(shelf) - len(reals)
    mine = sum(e.id in chosen for e in reals)
    assert mine >= min(len(reals), budget // 2)
    assert len(chosen) - mine >= min(fakes, budget // 2)
    assert ids_to_measure(shelf[::-1], budget) == chosen


@given(SHELF, st.integers(0, 70))
def test_no_group_is_seen_twice_before_each_of_its_source_was_seen(shelf, budget):
    chosen = ids_to_measure(shelf, budget)
    for kind in {(e.family, e.source) for e in shelf}:
        of = [e for e in shelf if (e.family, e.source) == kind]
        seen = Counter(e.group for e in of if e.id in chosen)
        if any(count > 1 for count in seen.values()):
            assert set(seen) == {e.group for e in of}


def test_an_item_more_changes_the_choice_by_an_item():
    shelf = [exemplar(i, "real" if i % 2 else "gan", "a", i) for i in range(200)]
    before, after = ids_to_measure(shelf[:-1], 60), ids_to_measure(shelf, 60)
    assert len(before - after) <= 1


@pytest.mark.slow
def test_what_rests_is_held_back_over_the_budget_and_keeps_its_row(store, fill, make):
    fill([make(i) for i in range(200)])
    label(store, [f"media-0-{i}" for i in range(100)], "real", "ada")
    label(store, [f"media-0-{i}" for i in range(100, 200)], "gan", "ada")
    assert choose_resting(store, 1000) == frozenset()
    resting = choose_resting(store, 12)
    with store.read() as connection:
        held = select_exemplars(connection, shelf="held-back")
    left = Counter((e.split, e.family) for e in held if e.id not in resting)
    assert left == {(split, name): 6 for split in ("calibration", "test") for name in ("real", "gan")}
    assert resting < {e.id for e in held}
