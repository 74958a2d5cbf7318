import shutil
from pathlib import Path

import numpy as np
import pytest

from detector.release.manifest import FEATURE_VERSION
from memory import rows
from memory.index import index as module
from memory.index import ivf_index
from memory.index.index import Index
from memory.index.shared_index import Renewal

pytestmark = pytest.mark.slow

WIDTH = 24


@pytest.fixture
def saved(tmp_path, store, fill, make):
    fill([make(i) for i in range(40)])
    reopened(tmp_path / "index", store).save(tmp_path / "index")
    return tmp_path / "index"


def opened_ids(path, store):
    index = Index.open(path, store, FEATURE_VERSION, WIDTH)
    matches = index.search(np.stack([rng_features(i) for i in range(40)]), 1)
    assert [m[0].id for m in matches] == [f"media-0-{i}" for i in range(40)]
    assert all(m[0].distance < 1e-3 for m in matches)
    return sorted(index.ids)


def reopened(path, store):
    return Index.open(path, store, FEATURE_VERSION, WIDTH)


def rng_features(number):
    rng = np.random.default_rng(number)
    rng.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    return rng.normal(size=WIDTH).astype(np.float32)


@pytest.mark.parametrize(
    "damage", ["none", "flipped byte", "truncated", "missing", "empty", "of another time"]
)
def test_whatever_became_of_the_snapshot_the_index_answers_from_the_rows(saved, store, damage):
    content = bytearray(saved.read_bytes())
    if damage == "flipped byte":
        content[len(content) // 2] ^= 1
        saved.write_bytes(content)
    elif damage == "truncated":
        saved.write_bytes(content[:-100])
    elif damage == "missing":
        saved.unlink()
    elif damage == "empty":
        saved.write_bytes(b"")
    elif damage == "of another time":
        newer = reopened(saved, store)
        newer.revision = 10**6
        saved.unlink()
        newer.save(saved)
    assert len(opened_ids(saved, store)) == 40


def test_a_whole_snapshot_is_used_and_not_rebuilt(saved, store, monkeypatch):
    def build(*_):
        raise AssertionError("rebuilt")

    monkeypatch.setattr(Index, "_build", build)
    assert len(reopened(saved, store).ids) == 40
    saved.unlink()
    with pytest.raises(AssertionError, match="rebuilt"):  # the control
        reopened(saved, store)


def test_a_snapshot_catches_up_with_rows_written_since(saved, store, fill, make):
    fill([make(i) for i in range(40, 45)])
    index = reopened(saved, store)
    assert len(index.ids) == 45
    assert len(set(index.ids)) == 45


def test_a_snapshot_of_rows_that_are_gone_is_rebuilt_at_any_revision(saved, store, fill, make):
    # As after a restore to an earlier time, when others have written before the worker started.
    with store.write() as connection:
        connection.exec_driver_sql("DELETE FROM exemplars WHERE id IN ('media-0-38', 'media-0-39')")
        late = rows.current_revision(connection) - 1
    fill([make(i) for i in range(50, 53)])
    with store.write() as connection:
        connection.exec_driver_sql(
            f"UPDATE exemplars SET revision = {late} WHERE id IN ('media-0-50', 'media-0-51')"
        )
    index = reopened(saved, store)
    expected = {*range(38), 50, 51, 52}
    assert sorted(index.ids) == sorted(f"media-0-{number}" for number in expected)


def test_distances_are_those_of_plain_arithmetic(saved, store):
    index = reopened(saved, store)
    with store.read() as connection:
        (everything,) = rows.stream_features(connection, FEATURE_VERSION)
    scaled = index.scale(everything.matrix)
    query = rng_features(99)[None]
    expected = np.sort(np.linalg.norm(scaled - index.scale(query), axis=1))[:5]
    (found,) = index.search(query, 5)
    np.testing.assert_allclose([m.distance for m in found], expected, rtol=1e-3)


def test_an_empty_memory_has_an_index_that_finds_nothing(tmp_path, store):
    index = reopened(tmp_path / "index", store)
    assert index.search(np.zeros((2, WIDTH), np.float32), 3) == [[], []]
    index.save(tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_snapshot_is_written_where_enough_changed_and_a_start_reads_no_row_that_it_holds(
    tmp_path, store, fill, make, monkeypatch
):
    path = tmp_path / "index"
    fill([make(i) for i in range(300)])
    index = reopened(path, store)
    index.save(path)
    before = path.read_bytes()
    index.save(path)
    fill([make(i) for i in range(300, 303)])
    with store.write() as connection:
        rows.drop(connection, ["media-0-7"])
    with store.read() as connection:
        index.catch_up(connection)
    index.save(path)
    assert path.read_bytes() == before  # four of 302 are fewer than a fiftieth
    fill([make(i) for i in range(303, 306)])
    with store.read() as connection:
        index.catch_up(connection)
    index.save(path)
    assert path.read_bytes() != before
    path.unlink()
    index.save(path)  # whatever became of it

    fill([make(306)])
    read = []

    def watched(*given):
        for block in changed(*given):
            read.extend(block.ids)
            yield block

    changed = rows.changed_features
    monkeypatch.setattr(module, "changed_features", watched)
    monkeypatch.setattr(Index, "_build", None)
    again = reopened(path, store)
    assert read == ["media-0-306"]
    assert set(again.ids) == {f"media-0-{i}" for i in range(307)} - {"media-0-7"}
    assert again.search(make(301).features[None], 1)[0][0].id == "media-0-301"
    assert again.search(make(7).features[None], 1)[0][0].id != "media-0-7"


def test_a_snapshot_of_a_history_that_a_restore_undid_is_rebuilt(tmp_path, store, fill, make):
    path, database = tmp_path / "index", store._engine.url.database
    assert database is not None
    fill([make(i) for i in range(40)])
    store.close()
    shutil.copy(database, tmp_path / "backup")
    fill([make(40)])
    reopened(path, store).save(path)
    revision = store.revision()
    store.close()
    for suffix in ("-wal", "-shm"):
        Path(database + suffix).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup", database)
    fill([make(50)])
    assert store.revision() == revision
    index = reopened(path, store)
    assert "media-0-50" in index.ids
    assert "media-0-40" not in index.ids


def test_two_processes_that_save_in_one_place_do_not_mix_theirs(tmp_path, store, fill, make):
    path = tmp_path / "index"
    fill([make(i) for i in range(40)])
    first, second = reopened(path, store), reopened(path, store)
    for turn, index in enumerate([first, second, first, first, second]):
        fill([make(100 + turn)])
        with store.read() as connection:
            index.catch_up(connection)
        index.save(path)
        assert set(reopened(path, store).ids) == {
            f"media-0-{i}" for i in [*range(40), *range(100, 101 + turn)]
        }


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(ivf_index, "ONE_CELL", 300)
    monkeypatch.setattr(module, "_IN_PLACE", 100)


def names(numbers):
    return {f"media-0-{number}" for number in numbers}


def test_an_outgrown_index_is_made_anew_aside_and_takes_in_what_came_meanwhile(tmp_path, store, fill, make):
    fill([make(i) for i in range(150)])
    before = reopened(tmp_path / "index", store)
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
    assert len(reopened(tmp_path / "index", store)) == 410


def test_a_new_index_that_failed_leaves_the_old_and_is_retried(tmp_path, store, fill, make, monkeypatch):
    fill([make(i) for i in range(120)])
    index = reopened(tmp_path / "index", store)
    fill([make(i) for i in range(120, 260)])
    with store.read() as connection:
        index.catch_up(connection)

    def failing(*given):
        raise OSError("no space left on device")

    renewal = Renewal(store, tmp_path / "index")
    with monkeypatch.context() as patched:
        patched.setattr(Index, "build", failing)
        renewal.current(index)
        renewal.wait()
        assert renewal.current(index) is index
    assert renewal.current(index) is index
    renewal.wait()
    assert renewal.current(index) is not index


def test_an_index_of_one_size_is_not_made_anew(tmp_path, store, fill, make):
    fill([make(i) for i in range(150)])
    index = reopened(tmp_path / "index", store)
    renewal = Renewal(store)
    assert renewal.current(index) is index
    assert not renewal.under_way


def test_places_that_retention_left_empty_make_an_index_outgrown(tmp_path, store, fill, make, monkeypatch):
    from memory.rows import drop

    fill([make(i) for i in range(150)])
    index = reopened(tmp_path / "index", store)
    for start in range(0, 600, 150):
        fill([make(i) for i in range(start + 150, start + 300)])
        with store.write() as connection:
            drop(connection, sorted(names(range(start, start + 150))))
        with store.read() as connection:
            index.catch_up(connection)
    assert set(index.ids) == names(range(600, 750))
    assert index.outgrown
    assert set(Index.build(store, FEATURE_VERSION, WIDTH).ids) == names(range(600, 750))
