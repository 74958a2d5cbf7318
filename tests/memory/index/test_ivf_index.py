import io

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.index import ivf_index as module
from memory.index.ivf_index import IvfIndex

WIDTH = 12


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(module, "ONE_CELL", 50)


def drawn(count, seed, kinds=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, WIDTH))
    if kinds:
        rows = rng.normal(size=(kinds, WIDTH))[rng.integers(kinds, size=count)] + 0.3 * rows
    return rows.astype(np.float16).astype(np.float32)


def filled(rows):
    index = IvfIndex.train(rows, len(rows), seed=0)
    index.add(rows, np.arange(len(rows)))
    assert index.fit(rows, seed=0)["recall"] >= 0.97
    return index


def reloaded(index):
    file = io.BytesIO()
    index.write(file)
    file.seek(0)
    return IvfIndex.read(file)


def share_found(index, rows, queries):
    places = index.search(queries, 10)[1]
    nearest = np.argsort(((queries[:, None] - rows[None]) ** 2).sum(2), axis=1)[:, :10]
    return float(
        np.mean([np.isin(mine, theirs).mean() for mine, theirs in zip(nearest, places, strict=True)])
    )


STEP = st.tuples(st.sampled_from(["add", "remove", "search", "reload"]), st.integers(0, 10**6))


@pytest.mark.slow
@given(st.lists(STEP, max_size=20), st.sampled_from([3, 100]))
def test_whatever_is_added_removed_and_saved_a_search_of_all_cells_finds_all_and_how_far(steps, count):
    held = {}
    index = IvfIndex.train(drawn(100, 0), count, seed=0)
    if index.cells > 1:
        index.probes, index.measured = index.cells, 1024
    for turn, (step, seed) in enumerate(steps):
        some = drawn(1 + seed % 70, seed)
        if step == "add":
            places = np.arange(100 * turn, 100 * turn + len(some))
            index.add(some, places)
            held |= dict(zip(places.tolist(), some, strict=True))
        elif step == "remove":
            gone = sorted(held)[:: 1 + seed % 3]
            index.remove(np.array(gone, np.int64))
            held = {place: row for place, row in held.items() if place not in gone}
        elif step == "reload":
            index = reloaded(index)
        assert len(index) == len(held)
        distances, places = index.search(some, 4)
        for query, near, at in zip(some, distances, places, strict=True):
            present = at[at >= 0].tolist()
            assert set(present) <= set(held)
            assert len(present) == min(4, len(held))
            nearest = sorted(float(np.sum((row - query) ** 2)) for row in held.values())[:4]
            np.testing.assert_allclose(near[at >= 0], nearest, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kinds", [0, 20])
def test_many_vectors_lie_in_cells_of_which_a_search_looks_into_some_and_finds_nearly_all(kinds):
    rows, queries = np.split(drawn(6200, 1, kinds), [6000])
    index = filled(rows)
    assert 1 < index.probes < index.cells
    assert share_found(index, rows, queries) >= 0.95
    index.measured = 10
    assert share_found(index, rows, queries) < 0.95  # by the codes alone


def test_of_directions_without_any_order_so_many_cells_are_searched_that_the_promise_holds(monkeypatch):
    careful = filled(drawn(3000, 2)).probes
    monkeypatch.setattr(module, "_IN_CELLS", 0.3)
    monkeypatch.setattr(module, "_MEASURED", (64,))
    rows = drawn(3000, 2)
    index = IvfIndex.train(rows, len(rows), seed=0)
    index.add(rows, np.arange(len(rows)))
    assert index.fit(rows, seed=0)["recall"] < 0.9
    assert careful > 2 * index.probes


def test_few_vectors_lie_in_one_cell_and_are_all_found():
    rows, queries = np.split(drawn(70, 8), [50])
    index = filled(rows)
    assert index.cells == index.probes == 1
    assert share_found(index, rows, queries) == 1


def test_the_same_sample_and_seed_give_the_same_cells():
    files = io.BytesIO(), io.BytesIO()
    for file in files:
        filled(drawn(2000, 3, 5)).write(file)
    assert files[0].getvalue() == files[1].getvalue()


def test_cells_that_were_saved_find_the_same_and_take_in_more():
    rows = drawn(2000, 4, 10)
    index = filled(rows)
    index.remove(np.arange(0, 2000, 2))
    again = reloaded(index)
    assert again.fit(rows[1::2], 0) == index.fit(rows[1::2], 0)
    for either in (index, again):
        either.add(drawn(100, 5, 10), np.arange(2000, 2100))
    for mine, theirs in zip(index.search(rows[:50], 5), again.search(rows[:50], 5), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert all(place % 2 or place >= 2000 for place in index.search(rows[:50], 5)[1].ravel())


def test_a_near_duplicate_finds_its_like_whatever_cell_it_falls_into():
    rows = drawn(6000, 5)
    index = filled(rows)
    nearly = rows[:1000] + 0.1 * np.random.default_rng(6).normal(size=(1000, WIDTH)).astype(np.float32)
    assert (index.search(nearly, 1)[1][:, 0] == np.arange(1000)).mean() >= 0.998


def test_a_copy_on_a_gpu_answers_and_follows_what_comes_and_goes(monkeypatch):
    copied = []

    def copy(resources, device, index):
        copied.append(faiss.clone_index(index))
        return copied[-1]

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", copy, raising=False)
    rows = drawn(300, 9)
    index = filled(rows)
    assert not copied  # nothing was asked for
    assert (index.search(rows, 1)[1][:, 0] == np.arange(300)).all()
    index.add(rows[:1] + 5, np.array([300]))
    assert index.search(rows[:1] + 5, 1)[1].item() == 300
    assert len(copied) == 1
    index.remove(np.array([7]))
    assert index.search(rows[7:8], 1)[1].item() != 7
    assert len(copied) == 2
    # What is saved is whole, without a GPU.
    assert len(reloaded(index)) == 300
