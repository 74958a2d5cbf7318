"""New sources, however many, push out no test that has begun; what is not watched is counted."""

import numpy as np
import pytest
from sqlalchemy import func, select
from verdicts import make_item, make_verdict

from ingest.records import InRecord
from memory import metrics
from memory.schema import drift_watched, watched
from memory.settings import MemorySettings
from memory.shift import places
from memory.shift.alarms import to_shelve
from memory.shift.watch import ShiftWatch

HOUR_MS, WEEK_MS = 3_600_000, 7 * 24 * 3_600_000


@pytest.fixture
def watcher(sqlite_url, monkeypatch):
    # Else a test may meet the false alarm that the budget allows.
    monkeypatch.setattr("memory.shift.alarms.secrets.randbits", lambda bits: 7)
    made = ShiftWatch(MemorySettings(database_url=sqlite_url, min_reference=20))
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch):
    """What the clock shows, in milliseconds; each look takes one more."""
    shows = [10 * WEEK_MS]

    def now():
        shows[0] += 1
        return shows[0]

    for module in ("places", "alarms", "drift"):
        monkeypatch.setattr(f"memory.shift.{module}.now_ms", now)
    return shows


class Stream:
    """Verdicts that say real, one after another."""

    def __init__(self, watcher):
        self._watcher, self._offset, self._rng = watcher, 0, np.random.default_rng(0)

    def send(self, *sources, items=1, shift=0.0, release="a" * 64):
        """So many items of each source, in turn."""
        records = []
        for source in sources * items:
            item = make_item(self._offset, source=source)
            score = float(self._rng.normal() + shift)
            said = {"label": "real", "unknown_score": score, "energy": score, "release": release}
            value = make_verdict(item, **said).model_dump_json().encode()
            records.append(InRecord("verdicts", 0, self._offset, 0, None, value, ()))
            self._offset += 1
        for first in range(0, len(records), 500):
            self._watcher.take(records[first : first + 500])


@pytest.fixture
def stream(watcher):
    return Stream(watcher)


def kept(watcher, table=watched, release="a" * 64):
    with watcher.store.read() as connection:
        here = select(table.c.source, table.c.number).where(table.c.release == release, table.c.source != "")
        return {row.source: row.number for row in connection.execute(here)}


def alarms(watcher):
    with watcher.store.read() as connection:
        return [alarm.raised.source for alarm in to_shelve(connection)]


def names(count, prefix="new"):
    return [f"{prefix}-{n}" for n in range(count)]


def flush(stream, monkeypatch):
    """More sources than there are places, each long enough to be bet on; let in without a limit."""
    monkeypatch.setattr(places, "MAX_SOURCES", 5)
    monkeypatch.setattr(places, "MAX_NEW_SOURCES", 1000)
    stream.send("camera", items=150)
    stream.send(*names(12), items=25)


def test_sources_that_are_new_push_out_no_test_that_has_begun(watcher, stream, monkeypatch):
    flush(stream, monkeypatch)
    for table in (watched, drift_watched):
        assert kept(watcher, table)["camera"] == min(n for n in kept(watcher, table).values() if n)
        assert sum(number > 0 for number in kept(watcher, table).values()) <= 5
    stream.send("camera", items=80, shift=3.0)
    assert "camera" in alarms(watcher)


def test_with_any_test_idle_at_once_it_is_pushed_out(watcher, stream, clock, monkeypatch):
    """The control: the one unseen for longest leaves, as it was, and its shift is told of nobody."""
    monkeypatch.setattr(places, "_WEEK_MS", 0)
    flush(stream, monkeypatch)
    assert kept(watcher).get("camera", 0) == 0
    stream.send("camera", items=80, shift=3.0)
    assert "camera" not in alarms(watcher)


def test_a_thousand_and_one_sources_at_once_flush_nothing_and_are_counted(watcher, stream, clock):
    stream.send("camera", items=15)  # it still gathers
    before = metrics.SOURCES_DROPPED._value.get()
    stream.send(*names(1001))
    found = kept(watcher)
    assert "camera" in found
    assert len(found) == places.MAX_NEW_SOURCES
    dropped = metrics.SOURCES_DROPPED._value.get() - before
    assert dropped == 2 * (1001 - 99)  # by the tests of shift, and of drift
    stream.send("camera", items=6)
    assert kept(watcher)["camera"] == 1


@pytest.mark.slow
def test_without_a_cap_by_the_hour_they_flush_what_gathers(watcher, stream, clock, monkeypatch):
    """The control."""
    monkeypatch.setattr(places, "MAX_NEW_SOURCES", 2000)
    stream.send("camera", items=15)
    stream.send(*names(1001))
    assert "camera" not in kept(watcher)


def test_an_hour_later_as_many_more_are_let_in(watcher, stream, clock, monkeypatch):
    monkeypatch.setattr(places, "MAX_NEW_SOURCES", 3)
    stream.send(*names(5))
    stream.send(*names(5))
    assert sorted(kept(watcher)) == names(3)
    clock[0] += HOUR_MS
    stream.send(*names(5))
    assert sorted(kept(watcher)) == names(5)


def test_a_test_that_nobody_saw_for_a_week_leaves_where_room_is_needed(watcher, stream, clock, monkeypatch):
    monkeypatch.setattr(places, "MAX_SOURCES", 2)
    stream.send("camera", "door", items=25)
    clock[0] += WEEK_MS + 1
    stream.send("door", items=25)
    assert kept(watcher) == {"camera": 1, "door": 2}  # there is room
    stream.send("phone", items=25)
    assert kept(watcher) == {"door": 2, "phone": 3}


def test_a_new_release_knows_its_sources_and_the_old_one_s_tests_stay(watcher, stream, clock, monkeypatch):
    monkeypatch.setattr(places, "MAX_NEW_SOURCES", 3)
    stream.send(*names(3), items=25)
    stream.send(*names(3), "phone", items=25, release="b" * 64)
    for release in ("a" * 64, "b" * 64):
        assert sorted(kept(watcher, release=release)) == names(3)


def test_releases_that_nobody_knows_push_out_none_that_was_heard_of_within_a_day(watcher, stream, clock):
    for n in range(places.MAX_RELEASES + 2):
        stream.send("camera", release=f"{n:064x}")
    found = [bool(kept(watcher, release=f"{n:064x}")) for n in range(places.MAX_RELEASES + 2)]
    assert found == [True] * places.MAX_RELEASES + [False] * 2
    clock[0] += 25 * HOUR_MS
    stream.send("camera", release="f" * 64)
    assert kept(watcher, release="f" * 64)
    assert not kept(watcher, release=f"{0:064x}")


def test_the_test_over_all_is_let_in_whatever_came(watcher, stream, clock, monkeypatch):
    monkeypatch.setattr(places, "MAX_NEW_SOURCES", 0)
    stream.send(*names(30))
    with watcher.store.read() as connection:
        assert connection.scalars(select(drift_watched.c.source)).all() == [places.OVER_ALL]
        assert connection.scalar(select(func.count()).select_from(watched)) == 0
