import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from detector.release.architecture import FEATURE_VERSION
from memory import rows
from memory.index import index as module
from memory.index.index import Index
from memory.index.snapshot import Record, SnapshotError, Written, add, is_end, read, write_whole
from memory.intake import Arrival
from memory.store import Store

Make = Callable[..., Arrival]
Fill = Callable[..., object]
WIDTH = 24


def record(number: int) -> Record:
    return Record({"values": np.arange(number, number + 3)}, {"number": str(number)})


def numbers(path: Path) -> list[int]:
    return [int(one.facts["number"]) for one, _ in read(path) if not is_end(one)]


@pytest.fixture
def added(tmp_path: Path) -> tuple[Path, Written, Written]:
    path = tmp_path / "snapshot"
    first = write_whole(path, [record(1), record(2)], {})
    second = add(path, first, [record(3)], {})
    assert second is not None
    return path, first, second


def test_wherever_the_last_save_was_cut_off_those_before_it_are_read(
    added: tuple[Path, Written, Written],
) -> None:
    path, first, second = added
    content = path.read_bytes()
    assert numbers(path) == [1, 2, 3]
    for length in range(first.length, second.length):
        path.write_bytes(content[:length])
        assert numbers(path) == [1, 2], length
    path.write_bytes(content[: first.length - 1])
    with pytest.raises(SnapshotError, match="damaged"):
        list(read(path))


def test_a_flipped_byte_ends_what_is_read(added: tuple[Path, Written, Written]) -> None:
    path, first, second = added
    content = path.read_bytes()
    for place in range(first.length, second.length, 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert numbers(path) == [1, 2], place


def test_a_save_cuts_off_what_a_crash_left_behind_the_one_before(
    added: tuple[Path, Written, Written],
) -> None:
    path, _, second = added
    with path.open("ab") as file:
        file.write(b"torn")
    assert add(path, second, [record(4)], {}) is not None
    assert numbers(path) == [1, 2, 3, 4]


def test_a_file_that_another_wrote_is_not_added_to(added: tuple[Path, Written, Written]) -> None:
    path, _, second = added
    write_whole(path, [record(9)], {})
    assert add(path, second, [record(4)], {}) is None
    assert numbers(path) == [9]
    path.unlink()
    assert add(path, second, [record(4)], {}) is None


def opened(path: Path, store: Store) -> Index:
    return Index.open(path, store, FEATURE_VERSION, WIDTH)


def test_a_snapshot_grows_by_what_came_and_went_and_a_start_reads_no_row_that_it_holds(
    tmp_path: Path, store: Store, fill: Fill, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index"
    fill([make(i) for i in range(300)])
    index = opened(path, store)
    index.save(path)
    whole, inode = path.stat().st_size, path.stat().st_ino
    fill([make(i) for i in range(300, 303)])
    with store.write() as connection:
        rows.drop(connection, ["media-0-7"])
    with store.read() as connection:
        index.catch_up(connection)
    index.save(path)
    assert path.stat().st_ino == inode
    assert 0 < path.stat().st_size - whole < whole / 10
    before = path.read_bytes()
    index.save(path)
    assert path.read_bytes() == before

    fill([make(303)])
    read: list[str] = []

    def watched(*given: object) -> object:
        for block in changed(*given):  # type: ignore[arg-type]
            read.extend(block.ids)
            yield block

    changed = rows.changed_features
    monkeypatch.setattr(module, "changed_features", watched)
    monkeypatch.setattr(Index, "_build", None)
    again = opened(path, store)
    assert read == ["media-0-303"]
    assert set(again.ids) == {f"media-0-{i}" for i in range(304)} - {"media-0-7"}
    assert again.search(make(301).features[None], 1)[0][0].id == "media-0-301"
    assert again.search(make(7).features[None], 1)[0][0].id != "media-0-7"


def test_a_snapshot_of_a_history_that_a_restore_undid_is_rebuilt(
    tmp_path: Path, store: Store, fill: Fill, make: Make
) -> None:
    path, database = tmp_path / "index", store._engine.url.database
    assert database is not None
    fill([make(i) for i in range(40)])
    store.close()
    shutil.copy(database, tmp_path / "backup")
    fill([make(40)])
    opened(path, store).save(path)
    revision = store.revision()
    store.close()
    for suffix in ("-wal", "-shm"):
        Path(database + suffix).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup", database)
    fill([make(50)])
    assert store.revision() == revision
    index = opened(path, store)
    assert "media-0-50" in index.ids
    assert "media-0-40" not in index.ids


def test_two_processes_that_save_in_one_place_do_not_mix_theirs(
    tmp_path: Path, store: Store, fill: Fill, make: Make
) -> None:
    path = tmp_path / "index"
    fill([make(i) for i in range(40)])
    one, other = opened(path, store), opened(path, store)
    for turn, index in enumerate([one, other, one, one, other]):
        fill([make(100 + turn)])
        with store.read() as connection:
            index.catch_up(connection)
        index.save(path)
        assert set(opened(path, store).ids) == {f"media-0-{i}" for i in [*range(40), *range(100, 101 + turn)]}


def test_too_much_to_be_added_is_written_whole(
    tmp_path: Path, store: Store, fill: Fill, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_PENDING", 10)
    path = tmp_path / "index"
    fill([make(i) for i in range(100)])
    index = opened(path, store)
    index.save(path)
    inode = path.stat().st_ino
    fill([make(i) for i in range(100, 120)])
    with store.read() as connection:
        index.catch_up(connection)
    assert index._pending is None
    index.save(path)
    assert path.stat().st_ino != inode
    assert len(opened(path, store)) == 120
