"""Whatever a record of the verdicts topic says, each reader of it goes on, and nothing else is lost by it."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from verdicts import make_item, make_verdict

from ingest.records import InRecord
from memory import metrics
from memory.estimate.accuracy import accuracy
from memory.intake import remember
from memory.rows import now_ms
from memory.schema import drift_watched, exemplars, verdicts, watched
from memory.settings import MemorySettings
from memory.shift.drift import list_drifts
from memory.shift.watch import ShiftWatch
from memory.sources import block, blocked_among, list_sources, unblock
from memory.store import RefusedRowError, Store, load_offsets
from memory.verdict_index import find_verdict, newest_verdicts

pytestmark = pytest.mark.slow

WIDE = "".join(chr(0x4E00 + n) for n in range(1000))
"""A source that a producer may give: 3,000 bytes of no pattern, and PostgreSQL's longest key has 2,704."""
NUL = "door\x00"

texts = st.text(st.characters(), max_size=40) | st.builds(
    lambda text, times: text * times, st.text(st.characters(), min_size=1, max_size=4), st.integers(1, 1100)
)
numbers = st.integers(-(2**70), 2**70) | st.sampled_from([2**31, 2**63 - 1, 2**63, 0])
reals = st.floats() | st.integers(-(2**1100), 2**1100)
verdict_changes = st.fixed_dictionaries(
    {},
    optional={
        "id": texts,
        "release": texts | st.just("a" * 64),
        "family": texts | st.none(),
        **dict.fromkeys(("family_probability", "fake_probability", "energy", "unknown_score"), reals),
        "unknown_parts": st.dictionaries(st.just("embedding_novelty") | texts, reals, max_size=2),
        "label": st.sampled_from(["real", "fake", "unknown"]),
        "supersedes": st.just("b" * 64),
    },
)
of_texts = dict.fromkeys(("source", "topic", "media_id", "digest"), texts)
item_changes = st.fixed_dictionaries({}, optional=of_texts | dict.fromkeys(("partition", "offset"), numbers))


@pytest.fixture
def memory(either_database):
    return MemorySettings(database_url=either_database, min_reference=20, audit_items=10)


@pytest.fixture
def watcher(memory):
    opened = ShiftWatch(memory)
    yield opened
    opened.close()


def body(offset, item, **changes):
    """What a record says that somebody forged: fields of a verdict, each replaced by whatever it is."""
    found = make_verdict(make_item(offset), label="real").model_dump(mode="json")
    return json.dumps(found | changes | {"item": found["item"] | item}).encode()


def record(offset, value, timestamp_ms=0):
    return InRecord("verdicts", 0, offset, timestamp_ms, None, value, ())


def take(watcher, first, value, timestamp_ms=0):
    """Put a forged record between two that are well; say which of the three is in the index."""
    records = [
        record(first, body(first, {})),
        record(first + 1, value, timestamp_ms),
        record(first + 2, body(first + 2, {"source": WIDE})),
    ]
    watcher.take(records)
    with watcher.store.read() as connection:
        assert load_offsets(connection) == {("verdicts", 0): first + 3}
        query = select(verdicts.c.offset).where(verdicts.c.offset >= first)
        there = set(connection.scalars(query))
    return [first + n in there for n in range(3)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(item_changes, verdict_changes, st.just(0) | st.integers(-(2**63), 2**63 - 1))
@example({"source": WIDE}, {}, 0)
@example({"source": "\U0001f4f7" * 1024}, {}, 0)
@example({"source": NUL}, {}, 0)
@example({}, {"release": "a" * 65}, 0)
@example({"source": "\ud800"}, {}, 0)
@example({"partition": 2**31}, {}, 0)
@example({"offset": 2**63}, {}, 0)
@example({}, {"label": "fake", "family": WIDE}, 0)
@example({"digest": WIDE}, {"id": WIDE}, 0)
@example({}, {}, 2**63 - 1)
def test_the_watch_goes_on_whatever_a_record_says(watcher, item, changes, timestamp_ms):
    with watcher.store.read() as connection:
        first = load_offsets(connection).get(("verdicts", 0), 0)
    before, _, after = take(watcher, first, body(first + 1, item, **changes), timestamp_ms)
    assert before
    assert after
    with watcher.store.read() as connection:  # what reads the rows afterwards
        list_sources(connection)
        list_drifts(connection, 10)
        newest_verdicts(connection, 10)
        accuracy(connection, "a" * 64, now_ms(), 7)
        find_verdict(connection, f"media-0-{first + 1}", "media")


@pytest.mark.parametrize(
    ("item", "changes"), [({"source": NUL}, {}), ({}, {"release": "a" * 65}), ({"partition": 2**31}, {})]
)
def test_what_postgresql_refuses_is_counted_and_stepped_over_alone(postgresql_url, item, changes):
    watcher = ShiftWatch(MemorySettings(database_url=postgresql_url))
    before = metrics.UNREADABLE._value.get()
    assert take(watcher, 0, body(1, item, **changes)) == [True, False, True]
    assert metrics.UNREADABLE._value.get() == before + 1
    watcher.close()


def test_a_record_of_the_far_future_lets_no_day_before_it_go(watcher):
    today = now_ms()
    watcher.take([record(0, body(0, {}), today)])
    for n, timestamp_ms in enumerate((2**63 - 1, -(2**63), today + 400 * 86_400_000), start=1):
        watcher.take([record(n, body(n, {}), timestamp_ms)])
    with watcher.store.read() as connection:
        assert accuracy(connection, "a" * 64, today, 7).over_all.items == 3
        assert all(0 <= found.at_ms <= now_ms() for found in newest_verdicts(connection, 10))


def test_a_source_of_any_length_has_its_own_test(watcher):
    names = [WIDE + "a", WIDE + "b", "\U0001f4f7" * 1024]
    for n in range(12):
        watcher.take([record(n, body(n, {"source": names[n % 3]}))])
    for table in (watched, drift_watched):
        with watcher.store.read() as connection:
            found = set(connection.scalars(select(table.c.source).where(table.c.source != "")))
        assert found == set(names)


def test_postgresql_takes_no_such_source_as_a_key(postgresql_url):
    """The control: by name, as it was, each of these would stop the watch."""
    store = Store(postgresql_url)
    with store.write_unversioned() as connection:
        connection.exec_driver_sql("CREATE TABLE by_name (source VARCHAR(1024) PRIMARY KEY)")
    with pytest.raises(RefusedRowError, match="2704"), store.write_unversioned() as connection:
        connection.exec_driver_sql("INSERT INTO by_name VALUES (%s)", (WIDE,))
    store.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts)
@example(WIDE)
@example("\U0001f4f7" * 1024)
@example(NUL)
@example("\ud800")
def test_any_source_is_blocked_and_let_in_again_or_refused(watcher, source):
    try:
        with watcher.store.write() as connection:
            block(connection, source, "ada")
            assert blocked_among(connection, [source, "other"]) == {source}
            unblock(connection, source, "ada")
    except RefusedRowError:
        assert "\x00" in source or any("\ud800" <= c <= "\udfff" for c in source)


@pytest.mark.parametrize("length", [1000, 1001, 1024])
def test_a_source_as_long_as_an_event_may_have_is_remembered(watcher, crops, index, make, length):
    store = watcher.store
    one = make(1, source="\u4e2d" * length)
    with store.write() as connection:
        done = remember(connection, crops, index, [one], [crops.put(one.crops)])
    assert done.new == (one.id,)
    with store.read() as connection:
        assert list_sources(connection)[0].name == one.source


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, texts, texts | st.none(), st.floats())
@example("id", NUL, None, 0.0)
@example("id", "camera", "a" * 65, 0.0)
@example("id", "\ud800", None, 0.0)
def test_an_item_that_the_shelf_refuses_is_alone(watcher, crops, index, make, id_, source, release, score):
    one = make(1, id=id_, source=source, release=release, unknown_score=score)
    try:
        with watcher.store.write() as connection:
            remember(connection, crops, index, [one], [crops.put(one.crops)])
    except RefusedRowError:
        pass
    with watcher.store.write() as connection:
        offset = connection.scalar(select(func.count()).select_from(exemplars))
        camera = make(offset + 1000, id=f"camera-{offset}")
        assert remember(connection, crops, index, [camera], [crops.put(camera.crops)]).new == (camera.id,)
