import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from near_duplicates import COPIES
from pictures import drawn, hashes_of
from verdicts import make_item, make_verdict

from detector.unknowns import encode
from ingest.records import InRecord
from memory import rows
from memory.features import FEATURE_VERSION
from memory.index.index import Index
from memory.intake import UnfitItemError, check, remember
from memory.labels import label
from memory.records import split_of
from memory.retention import sweep
from memory.store import load_offsets, save_offsets
from memory.worker import arrival_of

TOPIC = ("unknowns", 0)

DATABASES = ("sqlite_url", "postgresql_url")


def groups(store):
    with store.read() as connection:
        return {e.id: e.group for e in rows.select_exemplars(connection)}


def test_other_media_under_an_id_that_is_taken_is_remembered_under_its_own(store, fill, make):
    # A media topic that was made anew counts its offsets from 0 again.
    fill([make(1), make(2)])
    anew = [make(3, id="media-0-1"), make(2)]
    assert fill(anew).new == (f"media-0-1~{make(3).media_digest[:12]}",)
    assert fill(anew).new == ()
    same = [make(5, id="media-0-9"), make(6, id="media-0-9"), make(5, id="media-0-9")]
    assert len(fill(same).new) == 2
    with store.read() as connection:
        assert len(rows.select_exemplars(connection)) == 5


def test_an_item_that_comes_again_is_remembered_once(store, fill, make):
    first = fill([make(1), make(2), make(1)])
    again = fill([make(2), make(3)])
    assert (first.new, first.known) == (("media-0-1", "media-0-2"), 1)
    assert (again.new, again.known) == (("media-0-3",), 1)


def test_the_same_media_sent_twice_are_two_items_of_one_group(store, fill, make):
    fill([make(i) for i in range(20)])
    done = fill([make(50, media_digest=make(7).media_digest), make(51)])
    assert groups(store)["media-0-50"] == "media-0-7"
    assert groups(store)["media-0-51"] == "media-0-51"
    assert done.duplicates == 1


@pytest.mark.parametrize("together", [True, False])
def test_near_duplicates_share_a_group_and_others_do_not(store, fill, make, together):
    near = make(3).features + np.float32(0.01)
    arrivals = [*(make(i) for i in range(30)), make(40, features=near)]
    if together:
        fill(arrivals)
    else:
        fill(arrivals[:-1])
        fill(arrivals[-1:])
    found = groups(store)
    assert found.pop("media-0-40") == "media-0-3"
    assert all(item == group for item, group in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("copy", sorted(COPIES.keys() - {"trimmed by 5 % at one corner"}))
def test_a_copy_joins_the_group_of_what_it_shows_and_its_side_of_the_split(store, fill, make, copy, together):
    arrivals = [make(i, picture_hashes=hashes_of(drawn(i))) for i in range(10)]
    again = make(40, picture_hashes=hashes_of(COPIES[copy](drawn(3))))
    if together:
        fill([*arrivals, again])
    else:
        fill(arrivals)
        label(store, ["media-0-3"], "real", "ada")
        assert fill([again]).duplicates == 1
    label(store, ["media-0-40"], "blended", "ada")
    found = groups(store)
    assert found.pop("media-0-40") == "media-0-3"
    assert all(item == group for item, group in found.items())
    with store.read() as connection:
        assert rows.exemplars_of(connection, ["media-0-40"])[0].split == split_of("media-0-3")


def test_what_connects_two_groups_joins_the_nearer_and_leaves_the_other(store, fill, make):
    first, second = drawn(1), drawn(2)
    fill([make(1, picture_hashes=hashes_of(first)), make(2, picture_hashes=hashes_of(second))])
    both = hashes_of(COPIES["JPEG q70"](first)) + 2 * hashes_of(second)
    fill([make(3, picture_hashes=both)])
    assert groups(store) == {"media-0-1": "media-0-1", "media-0-2": "media-0-2", "media-0-3": "media-0-2"}


def test_pictures_without_hashes_do_not_fall_into_one_group(store, fill, make):
    fill([make(i) for i in range(10)])
    fill([make(i) for i in range(10, 20)])
    assert len(set(groups(store).values())) == 20


def test_a_group_that_the_item_came_with_counts_more_than_likeness(store, fill, make):
    fill([make(i) for i in range(20)])
    fill([make(41, features=make(3).features, group="photo-9")])
    assert groups(store)["media-0-41"] == "photo-9"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"crops": np.zeros((0, 16, 16, 3), np.uint8)}, "no_crops"),
        ({"features": np.array([1, np.nan], np.float32)}, "bad_features"),
        ({"features": np.zeros(0, np.float32)}, "bad_features"),
    ],
)
def test_an_item_that_cannot_be_compared_is_refused(make, changes, reason):
    with pytest.raises(UnfitItemError) as caught:
        check(make(1, **changes))
    assert caught.value.reason == reason


@pytest.mark.parametrize("held", [0, 1])
def test_features_of_another_width_do_not_get_in_however_empty_the_memory_is(store, fill, make, held):
    fill([make(i) for i in range(held)])
    with pytest.raises(UnfitItemError, match="7 features, not the 24"):
        fill([make(2, features=np.zeros(7, np.float32))])
    assert len(groups(store)) == held


class Crash(Exception):  # noqa: N818
    pass


def consume(store, crops, log, *, crash_at=None, together=True):
    """Read the log from the stored offset on; together says whether offset and row are one transaction."""
    index = Index(FEATURE_VERSION, 24)
    with store.read() as connection:
        start = load_offsets(connection).get(TOPIC, 0)
    for offset, item in enumerate(log[start:], start):
        if not together:
            with store.write() as connection:
                save_offsets(connection, {TOPIC: offset + 1})
        digest = crops.put(item.crops)
        if crash_at == "between crops and row":
            raise Crash
        with store.write() as connection:
            remember(connection, crops, index, [item], [digest], 0.1)
            if crash_at == "after the row":
                raise Crash
            if together:
                save_offsets(connection, {TOPIC: offset + 1})
            if crash_at == "before the commit":
                raise Crash


CRASHES = ["between crops and row", "after the row", "before the commit"]


@pytest.mark.bar("C1")
@pytest.mark.slow
@pytest.mark.parametrize("crash_at", CRASHES)
def test_wherever_it_crashes_every_item_is_remembered_once_without_crops_left(store, crops, make, crash_at):
    log = [make(i) for i in range(4)]
    consume(store, crops, log[:2])
    with pytest.raises(Crash):
        consume(store, crops, log, crash_at=crash_at)
    with store.read() as connection:
        assert load_offsets(connection) == {TOPIC: 2}
    consume(store, crops, log)
    assert sorted(groups(store)) == [f"media-0-{i}" for i in range(4)]
    assert sweep(store, crops) == 0


@pytest.mark.bar("C1")
@pytest.mark.parametrize("crash_at", CRASHES)
def test_control_an_offset_outside_the_transaction_loses_an_item(store, crops, make, crash_at):
    log = [make(i) for i in range(4)]
    consume(store, crops, log[:2], together=False)
    with pytest.raises(Crash):
        consume(store, crops, log, crash_at=crash_at, together=False)
    consume(store, crops, log, together=False)
    assert "media-0-2" not in groups(store)


@pytest.mark.bar("C4")
def test_the_topic_read_again_from_its_beginning_leaves_the_same_rows(store, crops, make, bar):
    log, times = [make(i % 20) for i in range(30)], bar.times(2, 10)
    consume(store, crops, log)
    with store.read() as connection:
        before = rows.select_exemplars(connection)
    for _ in range(times):
        with store.write() as connection:
            save_offsets(connection, {TOPIC: 0})
        consume(store, crops, log)
    with store.read() as connection:
        after = rows.select_exemplars(connection)
    bar.count(times, lost=len({e.id for e in before} - {e.id for e in after}), twice=len(after) - len(before))
    assert after == before
    assert len(after) == 20


@pytest.mark.bar("C4")
def test_control_where_each_reading_has_new_ids_the_topic_read_again_doubles(store, crops, make, bar):
    for reading in range(2):
        consume(store, crops, [replace(make(i), id=f"{reading}-{i}") for i in range(5)])
        with store.write() as connection:
            save_offsets(connection, {TOPIC: 0})
    with store.read() as connection:
        rows_after = rows.select_exemplars(connection)
    bar.count(1, twice=len(rows_after) - 5)
    assert len(rows_after) == 10


def test_crops_that_were_purged_before_the_row_came_are_written_again(store, crops, index, make):
    digest = crops.put(make(1).crops)
    assert sweep(store, crops) == 1
    with store.write() as connection:
        remember(connection, crops, index, [make(1)], [digest], 0.1)
    np.testing.assert_array_equal(crops.load(digest), make(1).crops)


def test_a_row_brings_back_the_raw_features_bit_for_bit(store, fill, make):
    fill([make(i) for i in range(5)])
    with store.read() as connection:
        found = rows.select_features(connection, FEATURE_VERSION, ids=["media-0-3", "media-0-1"])
    np.testing.assert_array_equal(found.matrix, np.stack([make(3).features, make(1).features]))


VERDICT = make_verdict(make_item())
ROW = np.ones(3, np.float32)
MESSAGE = encode(VERDICT, np.zeros((2, 8, 8, 3), np.uint8), ROW, ROW, FEATURE_VERSION)


def with_shape(shape):
    """A message whose crops have that shape and no bytes."""
    arrays = {"crops": {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}}
    for place, name in enumerate(("features", "embedding")):
        at = [place * ROW.nbytes, (place + 1) * ROW.nbytes]
        arrays[name] = {"dtype": "F32", "shape": [3], "data_offsets": at}
    arrays["__metadata__"] = {
        "verdict": VERDICT.model_dump_json(),
        "left_out": "0",
        "feature_version": FEATURE_VERSION,
    }
    header = json.dumps(arrays).encode()
    return len(header).to_bytes(8, "little") + header + 2 * ROW.tobytes()


@pytest.mark.parametrize("shape", [[1, 0, 0, 3], [1 << 40, 0, 0, 3], [0, 8, 8, 3], [1 << 62, 0, 0, 3]])
def test_crops_without_a_pixel_are_refused_however_many(shape):
    with pytest.raises(UnfitItemError):
        arrival_of(InRecord("u", 0, 0, 0, None, with_shape(shape), ()))


changes = st.lists(st.tuples(st.integers(0, len(MESSAGE) - 1), st.binary(min_size=1, max_size=4)), max_size=3)


@settings(max_examples=300)
@given(changes, st.integers(0, len(MESSAGE)))
def test_a_message_that_is_changed_anywhere_is_kept_or_refused(changes, length):
    value = bytearray(MESSAGE)
    for at, data in changes:
        value[at : at + len(data)] = data
    for written in (bytes(value), bytes(value[:length])):
        try:
            arrival = arrival_of(InRecord("u", 0, 0, 0, None, written, ()))
        except UnfitItemError:
            continue
        assert 0 < arrival.crops.size <= len(MESSAGE)
        assert np.isfinite(arrival.features).all()
        f"{arrival.id} {arrival.source}".encode()  # a surrogate would raise
