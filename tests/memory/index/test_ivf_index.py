import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.index import probing as module
from memory.index.ivf_index import Cells
from memory.index.one_list import OneList
from memory.index.probing import Probing
from memory.index.vectors import Vectors

WIDTH = 12


def drawn(count: int, seed: int, kinds: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, WIDTH))
    if kinds:
        rows = rng.normal(size=(kinds, WIDTH))[rng.integers(kinds, size=count)] + 0.3 * rows
    return rows.astype(np.float32)


def rounded(rows: np.ndarray, first: int = 0) -> Vectors:
    return Vectors(np.arange(first, first + len(rows)), rows.astype(np.float16))


def filled(rows: np.ndarray) -> Cells:
    made = Cells.trained(rows, len(rows), seed=0)
    probing = Probing(made, rows, seed=0)
    made.add(rounded(rows))
    probing.see(rounded(rows))
    assert probing.fit()["recall"] >= 0.97
    return made


def reloaded(cells: Cells) -> Cells:
    again = Cells.load(cells.saved(), cells.probed, cells.measured)
    for some in cells.parts():
        again.restore(some)
    return again


def share_found(found: Cells, rows: np.ndarray, queries: np.ndarray) -> float:
    places = found.search(queries, 10)[1]
    nearest = np.argsort(((queries[:, None] - rows[None]) ** 2).sum(2), axis=1)[:, :10]
    return float(
        np.mean([np.isin(mine, theirs).mean() for mine, theirs in zip(nearest, places, strict=True)])
    )


STEP = st.tuples(st.sampled_from(["add", "remove", "search", "reload"]), st.integers(0, 10**6))


@pytest.mark.slow
@given(st.lists(STEP, max_size=20))
@settings(max_examples=40, deadline=None)
def test_whatever_is_added_removed_and_saved_a_search_of_all_cells_finds_what_is_held_and_how_far_it_is(
    steps: list[tuple[str, int]],
) -> None:
    held: dict[int, np.ndarray] = {}
    found = Cells.trained(drawn(100, 0), 3, seed=0)
    found.probed, found.measured = found.count, 1024
    for turn, (step, seed) in enumerate(steps):
        some = drawn(1 + seed % 70, seed)
        if step == "add":
            added = rounded(some, 100 * turn)
            found.add(added)
            held |= dict(zip(added.places.tolist(), added.matrix.astype(np.float32), strict=True))
        elif step == "remove":
            gone = sorted(held)[:: 1 + seed % 3]
            found.remove(np.array(gone, np.int64))
            held = {place: row for place, row in held.items() if place not in gone}
        elif step == "reload":
            found = reloaded(found)
        assert len(found) == len(held)
        distances, places = found.search(some, 4)
        for query, near, at in zip(some, distances, places, strict=True):
            known = at[at >= 0].tolist()
            assert set(known) <= set(held)
            assert len(known) == min(4, len(held))
            nearest = sorted(float(np.sum((row - query) ** 2)) for row in held.values())[:4]
            np.testing.assert_allclose(near[at >= 0], nearest, rtol=1e-4, atol=1e-6)
    parts = {int(p): row for some in found.parts() for p, row in zip(some.places, some.matrix, strict=True)}
    assert parts.keys() == held.keys()
    assert all((parts[place] == held[place]).all() for place in held)


@pytest.mark.parametrize("kinds", [0, 20])
def test_many_vectors_lie_in_cells_of_which_a_search_looks_into_some_and_finds_nearly_all(kinds: int) -> None:
    rows, queries = np.split(drawn(6200, 1, kinds), [6000])
    found = filled(rows)
    assert 1 < found.probed < found.count
    assert share_found(found, rows, queries) >= 0.95
    found.measured = 10
    assert share_found(found, rows, queries) < 0.95  # by the codes alone


def test_of_directions_without_any_order_so_many_cells_are_searched_that_the_promise_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careful = filled(drawn(3000, 2)).probed
    monkeypatch.setattr(module, "_IN_CELLS", 0.3)
    monkeypatch.setattr(module, "_MEASURED", (64,))
    rows = drawn(3000, 2)
    made = Cells.trained(rows, len(rows), seed=0)
    probing = Probing(made, rows, seed=0)
    made.add(rounded(rows))
    probing.see(rounded(rows))
    assert probing.fit()["recall"] < 0.9
    assert careful > 2 * made.probed


def test_the_same_sample_and_seed_give_the_same_cells() -> None:
    first, second = (filled(drawn(2000, 3, 5)) for _ in range(2))
    np.testing.assert_array_equal(first.saved(), second.saved())
    assert (first.probed, first.measured) == (second.probed, second.measured)


def test_cells_that_were_saved_find_the_same_and_take_in_more() -> None:
    rows = drawn(2000, 4, 10)
    found = filled(rows)
    found.remove(np.arange(0, 2000, 2))
    again = reloaded(found)
    for one in (found, again):
        one.add(rounded(drawn(100, 5, 10), 2000))
    for mine, theirs in zip(found.search(rows[:50], 5), again.search(rows[:50], 5), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert all(place % 2 or place >= 2000 for place in found.search(rows[:50], 5)[1].ravel())


def test_a_near_duplicate_finds_its_like_whatever_cell_it_falls_into() -> None:
    rows = drawn(6000, 5)
    found = filled(rows)
    nearly = rows[:1000] + 0.1 * np.random.default_rng(6).normal(size=(1000, WIDTH)).astype(np.float32)
    assert (found.search(nearly, 1)[1][:, 0] == np.arange(1000)).mean() >= 0.998


def test_one_list_finds_the_nearest_of_what_it_holds_and_gives_it_back() -> None:
    rows = drawn(5000, 7)
    found = OneList(WIDTH)
    found.add(Vectors(np.arange(5000), rows))
    found.remove(np.arange(0, 5000, 3))
    left = np.setdiff1d(np.arange(5000), np.arange(0, 5000, 3))
    distances, places = found.search(rows[:40] + 0.01, 3)
    apart = ((rows[:40, None] + 0.01 - rows[left][None]) ** 2).sum(2)
    np.testing.assert_array_equal(places, left[np.argsort(apart, axis=1)[:, :3]])
    np.testing.assert_allclose(distances, np.sort(apart, axis=1)[:, :3], rtol=1e-3, atol=1e-5)
    parts = list(found.parts())
    np.testing.assert_array_equal(np.concatenate([some.places for some in parts]), left)
    np.testing.assert_array_equal(np.concatenate([some.matrix for some in parts]), rows[left])
