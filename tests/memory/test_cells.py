import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import cells as module
from memory.cells import Cells, Entries, Probing

WIDTH = 12


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_UP_TO", 500)


def drawn(count: int, seed: int, kinds: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, WIDTH))
    if kinds:
        rows = rng.normal(size=(kinds, WIDTH))[rng.integers(kinds, size=count)] + 0.3 * rows
    return rows.astype(np.float32)


def filled(rows: np.ndarray) -> Cells:
    made = Cells.trained(rows, len(rows), seed=0)
    probing = Probing(made, rows, seed=0)
    entries = made.encoded(rows, np.arange(len(rows)))
    made.add(entries)
    if made.count > 1:
        probing.see(rows, entries)
        probing.fit()
    return made


def exact(rows: dict[int, np.ndarray], query: np.ndarray, k: int) -> list[float]:
    return sorted(float(np.sum((row - query) ** 2)) for row in rows.values())[:k]


STEP = st.tuples(st.sampled_from(["add", "remove", "search", "reload"]), st.integers(0, 10**6))


@given(st.lists(STEP, max_size=20))
@settings(max_examples=40, deadline=None)
def test_whatever_is_added_and_removed_one_cell_finds_what_a_flat_search_finds(
    steps: list[tuple[str, int]],
) -> None:
    held: dict[int, np.ndarray] = {}
    found = Cells.trained(drawn(3, 0), 3, seed=0)
    for turn, (step, seed) in enumerate(steps):
        some = drawn(1 + seed % 7, seed)
        if step == "add":
            places = np.arange(100 * turn, 100 * turn + len(some))
            found.add(found.encoded(some, places))
            held |= dict(zip(places.tolist(), some, strict=True))
        elif step == "remove":
            gone = sorted(held)[:: 1 + seed % 3]
            found.remove(np.array(gone, np.int64))
            held = {place: row for place, row in held.items() if place not in gone}
        elif step == "reload":
            before, found = found, Cells.load(found.empty, found.probed)
            for entries in before.entries():
                found.add(entries)
        assert len(found) == len(held)
        distances, places = found.search(some, 4)
        for query, near, at in zip(some, distances, places, strict=True):
            known = at[at >= 0].tolist()
            assert set(known) <= set(held)
            np.testing.assert_allclose(near[at >= 0], exact(held, query, 4), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kinds", [0, 20])
def test_many_vectors_lie_in_cells_of_which_a_search_looks_into_some_and_finds_nearly_all(
    few_are_many: None, kinds: int
) -> None:
    rows, queries = np.split(drawn(6200, 1, kinds), [6000])
    found = filled(rows)
    assert 1 < found.probed < found.count
    places = found.search(queries, 10)[1]
    nearest = np.argsort(((queries[:, None] - rows[None]) ** 2).sum(2), axis=1)[:, :10]
    recall = np.mean([np.isin(mine, theirs).mean() for mine, theirs in zip(nearest, places, strict=True)])
    assert recall >= 0.95


def test_of_directions_without_any_order_so_many_cells_are_searched_that_the_promise_holds(
    few_are_many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RECALL", 0.3)
    careless = filled(drawn(3000, 2)).probed
    monkeypatch.setattr(module, "_RECALL", 0.97)
    assert filled(drawn(3000, 2)).probed > 2 * careless


def test_the_same_sample_and_seed_give_the_same_cells(few_are_many: None) -> None:
    first, second = (filled(drawn(2000, 3, 5)) for _ in range(2))
    np.testing.assert_array_equal(first.empty, second.empty)
    assert first.probed == second.probed
    for one, other in zip(first.entries(), second.entries(), strict=True):
        np.testing.assert_array_equal(one.places, other.places)
        np.testing.assert_array_equal(one.codes, other.codes)


def test_cells_give_their_entries_back_and_let_go_of_what_is_removed(few_are_many: None) -> None:
    rows = drawn(2000, 4, 10)
    found = filled(rows)
    found.remove(np.arange(0, 2000, 2))
    parts = list(found.entries())
    joined = Entries(np.concatenate([p.places for p in parts]), np.concatenate([p.codes for p in parts]))
    assert sorted(joined.places.tolist()) == list(range(1, 2000, 2))
    again = Cells.load(found.empty, found.probed)
    again.add(joined)
    for mine, theirs in zip(found.search(rows[:50], 5), again.search(rows[:50], 5), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert all(place % 2 for place in found.search(rows[:50], 5)[1].ravel())
    places = np.arange(2000)
    np.testing.assert_array_equal(found.cell_of(found.encoded(rows, places)), found.by_closeness(rows)[:, 0])


def test_a_near_duplicate_finds_its_like_whatever_cell_it_falls_into(few_are_many: None) -> None:
    rows = drawn(6000, 5)
    found = filled(rows)
    nearly = rows[:1000] + 0.1 * np.random.default_rng(6).normal(size=(1000, WIDTH)).astype(np.float32)
    assert (found.search(nearly, 1)[1][:, 0] == np.arange(1000)).mean() >= 0.998
