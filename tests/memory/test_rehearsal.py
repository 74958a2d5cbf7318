from collections import Counter
from collections.abc import Callable

import pytest

from memory.intake import Arrival
from memory.labels import label, undo
from memory.rehearsal import choose_rehearsal
from memory.rows import select_exemplars
from memory.store import Store

Make = Callable[..., Arrival]
Fill = Callable[..., object]
CLASSES = ("real", "gan")
TRAINED = "b"
"""A group whose items all go to the train split."""


@pytest.fixture
def taught(store: Store, fill: Fill, make: Make) -> Callable[..., list[str]]:
    """Remembers and labels items of the train split; returns their ids."""
    made = 0

    def teach(family: str, count: int, **changes: object) -> list[str]:
        nonlocal made
        arrivals = [make(made + i, group=TRAINED, **changes) for i in range(count)]
        made += count
        fill(arrivals)
        label(store, [a.id for a in arrivals], family, "ada")
        return [a.id for a in arrivals]

    return teach


def newest(store: Store) -> int:
    with store.read() as connection:
        return int(connection.exec_driver_sql("SELECT max(id) FROM labels").scalar_one())


def test_what_is_learnt_is_rehearsed_within_the_budget_and_what_is_new_is_learnt_in_whole(
    store: Store, taught: Callable[..., list[str]]
) -> None:
    real, gan = taught("real", 40), taught("gan", 6)
    learnt = newest(store)
    taught("real", 9)
    taught("blend", 9)
    choice = choose_rehearsal(store, CLASSES, learnt, 20, 1000)
    assert choice.kept == {"real": 14, "gan": 6}
    assert len(choice.resting) == 26
    assert choice.resting <= set(real)
    assert not choice.resting & set(gan)


def test_a_class_that_the_live_release_does_not_know_waits_in_whole(
    store: Store, taught: Callable[..., list[str]]
) -> None:
    taught("real", 10)
    taught("blend", 10)
    choice = choose_rehearsal(store, CLASSES, newest(store), 4, 1000)
    assert choice.kept == {"real": 4}
    assert len(choice.resting) == 6


def test_to_choose_takes_nothing_away_so_a_choice_is_as_good_as_the_one_before(
    store: Store, taught: Callable[..., list[str]]
) -> None:
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


def test_an_item_that_was_named_anew_since_is_new(store: Store, taught: Callable[..., list[str]]) -> None:
    ids = taught("real", 10)
    learnt = newest(store)
    again = label(store, ids[:4], "gan", "ada")
    assert choose_rehearsal(store, CLASSES, learnt, 0, 1000).resting == set(ids[4:])
    undo(store, again, "ada")
    assert choose_rehearsal(store, CLASSES, learnt, 0, 1000).resting == set(ids)


def test_one_source_cannot_fill_a_class_and_its_places_go_to_others(
    store: Store, taught: Callable[..., list[str]]
) -> None:
    flood = taught("gan", 50, source="flood")
    taught("gan", 10, source="quiet")
    taught("real", 30)
    choice = choose_rehearsal(store, CLASSES, newest(store), 1000, 20)
    assert choice.kept == {"gan": 30, "real": 20}
    assert len(choice.resting & set(flood)) == 30
    assert Counter(i in flood for i in choice.resting) == {True: 30, False: 10}


def test_features_of_another_version_are_neither_compared_nor_left_out(
    store: Store, taught: Callable[..., list[str]]
) -> None:
    taught("gan", 10)
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE exemplars SET feature_version = 'old' WHERE id < 'media-0-5'")
    choice = choose_rehearsal(store, CLASSES, newest(store), 2, 1000)
    assert choice.kept == {"gan": 2}
    assert len(choice.resting) == 3
    assert all(i >= "media-0-5" for i in choice.resting)


@pytest.mark.slow
def test_a_row_that_was_dropped_with_its_label_is_left_alone(
    store: Store, taught: Callable[..., list[str]]
) -> None:
    ids = taught("gan", 6)
    with store.write() as connection:
        connection.exec_driver_sql(
            "UPDATE exemplars SET shelf = 'dropped', crops_digest = NULL WHERE id < 'media-0-3'"
        )
    choice = choose_rehearsal(store, CLASSES, newest(store), 1, 1000)
    assert choice.kept == {"gan": 1}
    assert choice.resting < set(ids[3:])
