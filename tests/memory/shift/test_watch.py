from unittest.mock import Mock

import numpy as np
import pytest
from sqlalchemy import func, select
from verdicts import make_item, make_verdict

from ingest.records import InRecord
from memory import metrics
from memory.schema import estimate_sums
from memory.settings import MemorySettings
from memory.shift import places, watch
from memory.shift.alarms import SEEN, load, to_shelve
from memory.shift.drift import list_drifts
from memory.shift.shift_test import share_of_budget
from memory.shift.watch import MAX_SUSPECTS, SUSPECT_P, ShiftWatch, parse_verdict, real_verdict
from memory.store import StoreUnavailableError, load_offsets
from memory.verdict_index import find_verdict


@pytest.fixture
def settings(sqlite_url):
    return MemorySettings(database_url=sqlite_url, min_reference=40)


@pytest.fixture(autouse=True)
def drawn_alike(monkeypatch):
    # Else a test may meet the false alarm that the budget allows.
    monkeypatch.setattr("memory.shift.alarms.secrets.randbits", lambda bits: 7)
    monkeypatch.setattr("memory.shift.alarms.MAX_REFERENCE", 200)
    monkeypatch.setattr(places, "MAX_SOURCES", 3)


@pytest.fixture
def watcher(settings):
    made = ShiftWatch(settings)
    yield made
    made.close()


def said(offset, score, *, source="camera", media_id="id", key=None, **changes):
    """The record of a verdict on the media at this offset."""
    digest = changes.pop("digest", f"{offset:064x}")
    item = make_item(offset, source=source, media_id=media_id, digest=digest)
    found = make_verdict(item, **{"label": "real", "unknown_score": score} | changes)
    return InRecord("verdicts", 0, offset, 0, key, found.model_dump_json().encode(), ())


def scores(count, shift=0.0, seed=0):
    return [float(score) for score in np.random.default_rng(seed).normal(size=count) + shift]


def alarms(store):
    with store.read() as connection:
        return to_shelve(connection)


def shifted(source="camera", begin=0):
    """A hundred and fifty items of one kind, then forty that are shifted by two deviations."""
    values = [*scores(150), *scores(40, 2.0, seed=1)]
    return [said(begin + n, score, source=source) for n, score in enumerate(values)]


@pytest.mark.parametrize(("supersedes", "counts"), [("b" * 64, False), (None, True)])
def test_a_correction_is_no_new_item_of_any_series_and_a_first_verdict_is(watcher, store, supersedes, counts):
    watcher.take([said(n, score, energy=score) for n, score in enumerate(scores(150))])
    again = [
        said(150 + n, score, energy=score, supersedes=supersedes)
        for n, score in enumerate(scores(60, 3.0, seed=1))
    ]
    watcher.take(again)
    assert (len(alarms(store)) == 1) is counts
    with store.read() as connection:
        assert (list_drifts(connection, 9) != []) is counts
        assert connection.scalar(select(func.sum(estimate_sums.c["items"]))) == 150 + 60 * counts


def test_a_source_whose_reals_shift_raises_one_alarm_and_its_neighbour_none(watcher, store):
    steady = [said(1000 + n, score, source="other") for n, score in enumerate(scores(190, seed=2))]
    records = [record for pair in zip(shifted(), steady, strict=True) for record in pair]
    for first in range(0, len(records), 16):
        watcher.take(records[first : first + 16])
    (alarm,) = alarms(store)
    assert alarm.raised.source == "camera"
    assert alarm.raised.log_e >= alarm.raised.log_limit
    assert alarm.raised.items <= 110 + 30
    # What was told apart began with the 151st item, give or take what chance does.
    suspects = [suspect.offset for suspect in alarm.suspects]
    assert min(suspects) >= 140
    assert 5 <= len(suspects) <= MAX_SUSPECTS
    assert all(suspect.p is not None and suspect.p <= SUSPECT_P for suspect in alarm.suspects)
    assert max(other.offset for other in alarm.others) < 155


def test_no_shift_raises_no_alarm(watcher, store):
    watcher.take([said(n, score) for n, score in enumerate(scores(400))])
    assert alarms(store) == []


def test_a_watch_that_ends_goes_on_where_it_was(watcher, store, settings):
    records = shifted()
    watcher.take(records[:153])
    with store.read() as connection:
        before = load(connection, "a" * 64, "camera", settings)
        assert load_offsets(connection) == {("verdicts", 0): 153}
    other = ShiftWatch(settings)
    other.take(records[153:])
    other.close()
    (alarm,) = alarms(store)
    # The same test, taken on without the database in between.
    for record in records[153:]:
        found = real_verdict(parse_verdict(record))
        watch.observe(before, found[2])
        if (raised := watch.alarm_if_crossed(before, settings.max_false_alarms)) is not None:
            break
    assert raised.log_e == alarm.raised.log_e


def test_a_batch_that_failed_was_not_bet_on(watcher, store, settings, monkeypatch):
    watcher.take(shifted()[:100])

    def refuse(*given):
        raise StoreUnavailableError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(watch, "save_offsets", refuse)
        with pytest.raises(StoreUnavailableError):
            watcher.take(shifted()[100:])
    with store.read() as connection:
        assert load(connection, "a" * 64, "camera", settings).test.seen == 100
        assert load_offsets(connection) == {("verdicts", 0): 100}
    assert alarms(store) == []
    watcher.take(shifted()[100:])
    assert len(alarms(store)) == 1


def test_a_source_is_the_items_as_far_as_the_database_takes_it():
    assert real_verdict(parse_verdict(said(1, 0.0, source="door-7")))[:2] == ("a" * 64, "door-7")
    assert real_verdict(parse_verdict(said(1, 0.0, source="x" * 1025)))[1] == "x" * 1024


@pytest.mark.parametrize("label", ["fake", "unknown"])
def test_only_what_was_called_real_is_bet_on(label):
    assert real_verdict(parse_verdict(said(1, 0.0, label=label))) is None


def test_a_record_that_is_no_verdict_is_counted_and_stepped_over(watcher, store):
    before = metrics.UNREADABLE._value.get()
    watcher.take([InRecord("verdicts", 0, 0, 0, None, b"no verdict", ()), said(1, 0.0)])
    assert metrics.UNREADABLE._value.get() == before + 1
    with store.read() as connection:
        assert load_offsets(connection) == {("verdicts", 0): 2}


def test_each_verdict_is_found_by_its_id_and_only_while_its_batch_is_done(watcher, store, monkeypatch):
    watcher.take([said(1, 0.0), said(2, 5.0, label="unknown", source="door-7")])
    monkeypatch.setattr(watch, "save_offsets", Mock(side_effect=StoreUnavailableError("the disk is full")))
    with pytest.raises(StoreUnavailableError):
        watcher.take([said(3, 0.0)])
    with store.read() as connection:
        found = find_verdict(connection, "media-0-2", "media")
        assert (found.partition, found.offset, found.label, found.source) == (0, 2, "unknown", "door-7")
        assert find_verdict(connection, "media-0-3", "media") is None


def test_what_the_topic_has_no_more_is_forgotten_now_and_then(watcher, store, monkeypatch):
    watcher.take([said(n, 0.0) for n in range(1, 6)])
    source = Mock(beginnings=Mock(return_value={0: 4, 1: 9}))
    watcher.forget(source)
    watcher.forget(source)
    assert source.beginnings.call_count == 1
    with store.read() as connection:
        left = [find_verdict(connection, f"media-0-{n}", "media") is not None for n in range(1, 6)]
    assert left == [False, False, False, True, True]


def test_the_same_media_sent_again_and_again_is_one_item(watcher, store, settings):
    watcher.take([said(n, score) for n, score in enumerate(scores(150))])
    watcher.take([said(150 + n, 3.0, digest="f" * 64) for n in range(60)])
    assert alarms(store) == []
    with store.read() as connection:
        assert load(connection, "a" * 64, "camera", settings).test.seen == 151
    watcher.take([said(300 + n, 3.0) for n in range(60)])  # other media of that score is a shift
    assert len(alarms(store)) == 1


def test_of_sources_that_gather_the_one_unseen_for_longest_leaves(watcher, store, settings, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("memory.shift.alarms.now_ms", lambda: next(clock))
    for n, name in enumerate("abcbd"):
        watcher.take([said(n, 0.0, source=name)])
    with store.write_unversioned() as connection:
        seen = {name: load(connection, "a" * 64, name, settings) for name in "bcd"}
        anew = load(connection, "a" * 64, "a", settings)
    assert [one.test.seen for one in seen.values()] == [2, 1, 1]
    assert anew.test.seen == 0


def test_only_a_test_that_bets_takes_a_share_of_the_budget(watcher, store, settings):
    watcher.take([said(n, 0.0, source=f"key-{n}") for n in range(50)])
    for begin, source in ((100, "camera"), (200, "door")):
        watcher.take([said(begin + n, score, source=source) for n, score in enumerate(scores(40))])
        assert number(store, source, settings) == 0  # it has gathered, and nothing is bet yet
        watcher.take([said(begin + 60, 0.0, source=source)])
    assert (number(store, "camera", settings), number(store, "door", settings)) == (1, 2)
    assert share_of_budget(2) < share_of_budget(1)


def number(store, source, settings):
    with store.read() as connection:
        return load(connection, "a" * 64, source, settings).number


def test_sources_of_one_record_each_push_out_no_source_that_is_bet_on(watcher, store, settings):
    watcher.take([said(n, score) for n, score in enumerate(scores(60))])
    watcher.take([said(100 + n, 0.0, source=f"key-{n}") for n in range(50)])
    assert number(store, "camera", settings) == 1


def test_another_release_begins_anew_and_what_is_kept_is_bounded(watcher, store, settings):
    watcher.take([said(n, score) for n, score in enumerate(scores(500))])
    watcher.take([said(1000 + n, score, release="b" * 64) for n, score in enumerate(scores(5, 9.0))])
    assert alarms(store) == []
    with store.write_unversioned() as connection:
        old = load(connection, "a" * 64, "camera", settings)
        new = load(connection, "b" * 64, "camera", settings)
    assert (len(old.seen), len(old.test.kept)) == (SEEN, 200)
    assert (old.number, new.number, new.test.seen) == (1, 0, 5)


def test_after_an_alarm_the_source_gathers_anew(watcher, store, settings):
    watcher.take(shifted())
    watcher.take([said(500 + n, score) for n, score in enumerate(scores(100, 2.0, seed=3))])
    assert len(alarms(store)) == 1  # the same shift is told once
    with store.write_unversioned() as connection:
        assert load(connection, "a" * 64, "camera", settings).number == 2
