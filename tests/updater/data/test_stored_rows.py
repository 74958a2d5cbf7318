"""Rows on disk are read as an array is, and what lies there is never taken for what it no longer is."""

import pickle
import resource
from dataclasses import fields, replace

import numpy as np
import pytest
from forked import FORKS
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from updater.data import stored_rows
from updater.data.stored_rows import (
    Scratch,
    StoredRows,
    StoredRowsError,
    chosen_rows,
    collect_rows,
    joined_rows,
    read_shard,
    store_rows,
)
from updater.data.training_data import LabelledCrops


def array(count, start=0):
    return (np.arange(count * 6) + start).astype(np.uint8).reshape(count, 2, 3)


@pytest.fixture
def shards(tmp_path):
    for name, rows in (("a", array(5)), ("b", array(4, 30))):
        save_file({"crops": rows}, tmp_path / name, {"of": name})
    return [read_shard(tmp_path / name, "crops")[0] for name in ("a", "b")]


def whole():
    return np.concatenate([array(5), array(4, 30)])


ROWS = st.lists(st.integers(0, 8), max_size=12).map(lambda rows: np.array(rows, np.int64))
IN_MEMORY = np.concatenate([array(5), array(4, 30)])


@given(first=ROWS, second=ROWS, picked=st.data())
def test_a_choice_of_a_joined_choice_is_that_of_the_arrays(first, second, picked):
    here = joined_rows([chosen_rows(IN_MEMORY, first), chosen_rows(IN_MEMORY, second)])
    on_disk = store_rows(IN_MEMORY)
    there = joined_rows([chosen_rows(on_disk, first), chosen_rows(on_disk, second)])
    assert there.shape == here.shape
    assert np.array_equal(there[:], here)
    if len(here):
        rows = np.array(picked.draw(st.lists(st.integers(0, len(here) - 1), max_size=6)), np.int64)
        assert np.array_equal(there[rows], here[rows])
        assert np.array_equal(chosen_rows(there, rows)[:], here[rows])
    assert np.array_equal(there[1:7], here[1:7])


def test_rows_of_several_files_are_read_in_the_order_that_they_are_asked_for(shards):
    rows = StoredRows(shards)
    assert rows.shape == (9, 2, 3)
    assert rows.nbytes == 54
    assert np.array_equal(rows[:], whole())
    assert np.array_equal(rows[np.array([8, 0, 4, 5, 4])], whole()[[8, 0, 4, 5, 4]])
    assert np.array_equal(joined_rows([rows, array(2, 90)])[:], np.concatenate([whole(), array(2, 90)]))


def test_a_digest_says_which_rows_and_in_which_order(shards):
    rows = StoredRows(shards)
    order = np.array([0, 2])
    assert len({rows.digest, rows.take(order).digest, rows.take(order[::-1]).digest}) == 3
    assert StoredRows(shards).digest == rows.digest


def test_rows_of_other_shapes_do_not_go_together(shards):
    with pytest.raises(ValueError, match="do not go together"):
        joined_rows([StoredRows(shards), np.zeros((2, 4, 3), np.uint8)])


@pytest.mark.parametrize("how", ["cut short", "changed", "lost"])
def test_a_file_that_changes_while_it_is_used_is_told_of_in_one_line(shards, how):
    path = shards[0].path
    if how == "cut short":
        with path.open("rb+") as file:
            file.truncate(path.stat().st_size - 3)
    elif how == "changed":
        path.write_bytes(path.read_bytes())
    else:
        path.unlink()
    rows = StoredRows(shards)
    with pytest.raises(StoredRowsError, match="while it was in use: run the same again") as caught:
        rows[:5]
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert np.array_equal(rows[5:], array(4, 30))


def test_a_file_that_is_cut_short_between_two_readings_kills_nobody(shards):
    rows, path = StoredRows(shards), shards[0].path
    assert np.array_equal(rows[:2], array(2))
    with path.open("rb+") as file:
        file.truncate(shards[0].offset + 3)
    with pytest.raises(StoredRowsError, match="cut short"):
        rows[:5]


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_truncated_file_holds_no_shard(tmp_path, cut):
    save_file({"crops": array(5)}, tmp_path / "a")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:cut])
    assert read_shard(tmp_path / "a", "crops") is None
    assert read_shard(tmp_path / "none", "crops") is None


def test_a_header_that_claims_to_be_endless_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes((2**63).to_bytes(8, "little") + b"{}")
    assert read_shard(tmp_path / "a", "crops") is None


def test_what_takes_too_much_is_kept_on_disk_and_goes_with_its_last_reader(monkeypatch):
    monkeypatch.setattr(stored_rows, "MAX_HELD_BYTES", 30)
    parts = [array(3), array(4, 18)]
    assert isinstance(collect_rows([array(5)]), np.ndarray)
    held = collect_rows(iter(parts))
    assert isinstance(held, StoredRows)
    assert np.array_equal(held[:], np.concatenate(parts))
    path = held.shards[0].path
    assert path.exists()
    del held
    assert not path.exists()


def _read_there(rows, queue):
    queue.put(rows[:].tobytes())


@pytest.mark.slow
def test_another_process_of_the_host_reads_what_has_no_name():
    rows = store_rows(array(5))
    queue = FORKS.Queue()
    child = FORKS.Process(target=_read_there, args=(rows, queue))
    child.start()
    assert queue.get(timeout=180) == array(5).tobytes()
    child.join()
    assert np.array_equal(pickle.loads(pickle.dumps(rows))[:], array(5))


def test_a_full_disk_is_told_of_with_the_setting_that_helps(tmp_path):
    scratch = Scratch()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(StoredRowsError, match="TMPDIR"):
            scratch.add(array(5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


ALL = tuple(column.name for column in fields(LabelledCrops))
OPTIONAL = ("features", "crop_features", "pictures", "videos")
LACKING = st.sets(st.sampled_from(OPTIONAL))
COUNTS = st.lists(st.integers(1, 3), max_size=4)


def items_of(counts, first=0, on_disk=False):
    """Items of so many crops each, with every column there is; item i's values are i's and no other's."""
    names = tuple(f"{first + number}" for number in range(len(counts)))
    numbers = first + np.arange(len(counts))
    of_crops = 10 * np.repeat(numbers, counts) + np.concatenate(
        [np.arange(0), *map(np.arange, counts)]
    ).astype(np.int64)
    crops = np.broadcast_to(of_crops[:, None, None, None], (len(of_crops), 2, 2, 3)).astype(np.uint8)
    return LabelledCrops(
        ids=names,
        families=tuple(f"family {name}" for name in names),
        sources=tuple(f"source {name}" for name in names),
        groups=tuple(f"group {name}" for name in names),
        crops=store_rows(crops) if on_disk and len(crops) else crops,
        starts=np.cumsum([0, *counts]).astype(np.int64),
        features=numbers[:, None].astype(np.float32),
        crop_features=of_crops[:, None].astype(np.float32),
        pictures=np.broadcast_to(numbers[:, None, None, None], (len(names), 3, 3, 3)).astype(np.uint8),
        expert_logits=numbers[:, None].astype(np.float32) / 2,
        videos=numbers % 2 == 0,
        media=np.array([f"media {name}" for name in names], np.str_),
        declared=numbers % 3 == 0,
        labels=numbers.astype(np.int64),
    )


def same(some, others):
    for name in ALL:
        one, other = getattr(some, name), getattr(others, name)
        if one is None or other is None:
            assert one is other, name
        else:
            assert np.array_equal(one[:], other[:]), name


def test_every_column_is_filled_by_the_items_of_these_tests():
    assert all(getattr(items_of([1]), name) is not None for name in ALL)


@given(counts=st.lists(COUNTS, min_size=1, max_size=3), on_disk=st.booleans(), data=st.data())
def test_what_is_taken_of_joined_parts_is_what_is_taken_of_the_whole(counts, on_disk, data):
    whole = items_of([count for part in counts for count in part])
    begins = np.cumsum([0, *map(len, counts)])
    parts = [items_of(part, begins[number], on_disk) for number, part in enumerate(counts)]
    joined = LabelledCrops.join(parts)
    same(joined, whole)
    rows = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6) if len(whole) else st.just([]))
    same(joined.take(rows), LabelledCrops.join([whole.take([row]) for row in rows] or [whole.take([])]))
    for number, part in enumerate(parts):
        same(joined.take(range(begins[number], begins[number + 1])), part)


@given(first=COUNTS, second=COUNTS, lacking=LACKING)
def test_a_column_that_some_items_lack_is_left_out_and_an_empty_one_is_nothing(first, second, lacking):
    plain, other = items_of(first), items_of(second, len(first))
    joined = LabelledCrops.join([replace(plain, **dict.fromkeys(lacking)), other])
    for name in OPTIONAL:
        assert (getattr(joined, name) is None) == (name in lacking and bool(first or not second)), name
    none = items_of([])
    same(LabelledCrops.join([none, plain, none, other, none]), LabelledCrops.join([plain, other]))
