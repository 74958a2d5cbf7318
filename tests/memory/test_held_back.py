from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from memory.intake import Arrival
from memory.labels import label
from memory.records import Exemplar
from memory.rehearsal import choose_resting, measured
from memory.rows import select_exemplars
from memory.store import Store

Make = Callable[..., Arrival]
Fill = Callable[..., object]


def exemplar(number: int, family: str, source: str, group: int) -> Exemplar:
    return Exemplar(
        id=f"import-{number}",
        media_digest="",
        crops_digest="",
        source=source,
        group=f"group-{group}",
        shelf="held-back",
        family=family,
        split="test",
        release=None,
        unknown_score=None,
        received_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


ITEM = st.tuples(st.sampled_from(["real", "gan", "blend"]), st.sampled_from(["a", "b"]), st.integers(0, 9))
SHELF = st.lists(ITEM, max_size=60).map(
    lambda items: [exemplar(number, *item) for number, item in enumerate(items)]
)


@given(SHELF, st.integers(0, 70))
def test_the_budget_is_spent_and_kept_and_half_of_it_is_for_reals(shelf: list[Exemplar], budget: int) -> None:
    chosen = measured(shelf, budget)
    assert len(chosen) == min(budget, len(shelf))
    reals = [e for e in shelf if e.family == "real"]
    fakes = len(shelf) - len(reals)
    mine = sum(e.id in chosen for e in reals)
    assert mine >= min(len(reals), budget // 2)
    assert len(chosen) - mine >= min(fakes, budget // 2)
    assert measured(shelf[::-1], budget) == chosen


@given(SHELF, st.integers(0, 70))
def test_no_group_is_seen_twice_before_each_of_its_source_was_seen(
    shelf: list[Exemplar], budget: int
) -> None:
    chosen = measured(shelf, budget)
    for kind in {(e.family, e.source) for e in shelf}:
        of = [e for e in shelf if (e.family, e.source) == kind]
        seen = Counter(e.group for e in of if e.id in chosen)
        if any(count > 1 for count in seen.values()):
            assert set(seen) == {e.group for e in of}


def test_an_item_more_changes_the_choice_by_an_item() -> None:
    shelf = [exemplar(i, "real" if i % 2 else "gan", "a", i) for i in range(200)]
    before, after = measured(shelf[:-1], 60), measured(shelf, 60)
    assert len(before - after) <= 1


def test_what_rests_is_held_back_over_the_budget_and_keeps_its_row(
    store: Store, fill: Fill, make: Make
) -> None:
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
