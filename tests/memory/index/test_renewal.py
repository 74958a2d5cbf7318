from collections.abc import Callable
from pathlib import Path

import pytest

from detector.release.architecture import FEATURE_VERSION
from memory.index import index as module
from memory.index import ivf_index
from memory.index.index import Index
from memory.index.renewal import Renewal
from memory.intake import Arrival
from memory.store import Store

Make = Callable[..., Arrival]
Fill = Callable[..., object]
WIDTH = 24


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivf_index, "ONE_CELL", 300)
    monkeypatch.setattr(module, "_IN_PLACE", 100)


def names(numbers: range) -> set[str]:
    return {f"media-0-{number}" for number in numbers}


def opened(path: Path, store: Store) -> Index:
    return Index.open(path, store, FEATURE_VERSION, WIDTH)


def test_an_outgrown_index_is_made_anew_aside_and_takes_in_what_came_meanwhile(
    tmp_path: Path, store: Store, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(150)])
    before = opened(tmp_path / "index", store)
    fill([make(i) for i in range(150, 400)])
    with store.read() as connection:
        before.catch_up(connection)
    assert before.outgrown
    renewal = Renewal(store, tmp_path / "index")
    assert renewal.current(before) is before
    assert renewal.under_way
    renewal.wait()
    fill([make(i) for i in range(400, 410)])
    after = renewal.current(before)
    assert after is not before
    assert not renewal.under_way
    assert not after.outgrown
    with store.read() as connection:
        after.catch_up(connection)
    assert set(after.ids) == names(range(410))
    assert all(after.search(make(i).features[None], 1)[0][0].id == f"media-0-{i}" for i in range(0, 410, 40))
    # The new one's snapshot is in place.
    assert len(opened(tmp_path / "index", store)) == 410


def test_a_new_index_that_could_not_be_made_leaves_the_one_at_hand_and_is_tried_again(
    tmp_path: Path, store: Store, fill: Fill, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill([make(i) for i in range(120)])
    index = opened(tmp_path / "index", store)
    fill([make(i) for i in range(120, 260)])
    with store.read() as connection:
        index.catch_up(connection)

    def failing(*given: object) -> Index:
        raise OSError("no space left on device")

    renewal = Renewal(store, tmp_path / "index")
    with monkeypatch.context() as patched:
        patched.setattr(Index, "built", failing)
        renewal.current(index)
        renewal.wait()
        assert renewal.current(index) is index
    assert renewal.current(index) is index
    renewal.wait()
    assert renewal.current(index) is not index


def test_an_index_of_one_size_is_not_made_anew(tmp_path: Path, store: Store, fill: Fill, make: Make) -> None:
    fill([make(i) for i in range(150)])
    index = opened(tmp_path / "index", store)
    renewal = Renewal(store)
    assert renewal.current(index) is index
    assert not renewal.under_way


def test_places_that_retention_left_empty_make_an_index_outgrown(
    tmp_path: Path, store: Store, fill: Fill, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memory.rows import drop

    fill([make(i) for i in range(150)])
    index = opened(tmp_path / "index", store)
    for start in range(0, 600, 150):
        fill([make(i) for i in range(start + 150, start + 300)])
        with store.write() as connection:
            drop(connection, sorted(names(range(start, start + 150))))
        with store.read() as connection:
            index.catch_up(connection)
    assert set(index.ids) == names(range(600, 750))
    assert index.outgrown
    assert set(Index.built(store, FEATURE_VERSION, WIDTH).ids) == names(range(600, 750))
