from datetime import UTC, datetime
from unittest.mock import Mock

import numpy as np
import pytest
from sqlalchemy import func, select
from verdicts import make_item, make_verdict

from detector.reading import WITHDRAWAL_TYPE
from detector.records import Withdrawal
from ingest.records import InRecord
from memory import metrics, rows
from memory import purge as module
from memory.estimate import sums
from memory.estimate.accuracy import accuracy
from memory.estimate.audits import label_audit
from memory.estimate.sums import DAY_MS, note_estimates
from memory.labels import history, label, undo
from memory.purge import begin, emptied_among, holding, purge_batch, purged_sources
from memory.records import Raised
from memory.retention import sweep
from memory.rows import exemplars_of, select_exemplars
from memory.schema import alarms, audits, estimate_sums, exemplars
from memory.shift.alarms import put_raised, to_shelve
from memory.shift.watch import ShiftWatch
from memory.sources import SourceBlockedError, block, list_blocked, unblock
from memory.verdict_index import ignore_retracted

HOSTILE = "cam\u202e'; DROP TABLE exemplars; --" + "猫" * 900
DATABASES = ("sqlite_url", "postgresql_url")


@pytest.fixture
def filled(fill, make, store):
    """Nine items of one source, three of them labelled; and one of another that shows the same as one."""
    same = make(0).crops
    fill([make(i, source=HOSTILE, verdict="{}", embedding=np.ones(4, np.float32)) for i in range(9)])
    fill([make(20, crops=same)])
    label(store, ["media-0-1", "media-0-2"], "gan", "ada")
    label(store, ["media-0-3"], "ignore", "ada")


def purge(store, crops, *, blocks=False):
    with store.write() as connection:
        begin(connection, holding(connection, HOSTILE), "ada", blocks=blocks)
    return purge_batch(store, crops, HOSTILE, 10**6)


def shelved(store, shelf):
    with store.read() as connection:
        return [e.id for e in select_exemplars(connection, shelf=shelf)]


@pytest.mark.usefixtures("filled")
def test_what_is_held_is_told_and_goes_but_for_what_others_share_and_labels(store, crops, index):
    with store.read() as connection:
        index.catch_up(connection)
        found = holding(connection, HOSTILE)
    assert (sum(found.shelves.values()), found.labelled_count, found.blocked) == (9, 2, False)
    assert purge(store, crops) == (9, 0)
    assert len(list(crops.digests())) == 1
    assert shelved(store, "unknown") == ["media-0-20"]
    assert len(shelved(store, "dropped")) == 9
    with store.read() as connection:
        index.catch_up(connection)
        row = connection.execute(select(exemplars).where(exemplars.c.id == "media-0-1")).one()
        assert not any(row.features)
        assert (row.verdict, row.embedding, row.crops_digest, row.picture_hashes) == (None,) * 4
        assert purged_sources(connection) == {HOSTILE}
        assert emptied_among(connection, ["media-0-1", "media-0-20"]) == 1
    assert len(index) == 1
    assert [(entry.what, entry.exemplars) for entry in history(store)] == [("ignore", 1), ("gan", 2)]
    undo(store, 1, "ada")  # brings nothing back
    assert len(shelved(store, "dropped")) == 9


@pytest.mark.usefixtures("filled")
def test_a_message_read_again_brings_nothing_back_and_a_new_one_unless_blocked(store, crops, fill, make):
    purge(store, crops)
    again = fill([make(1, source=HOSTILE), make(30, source=HOSTILE)])
    assert (again.new, again.known) == (("media-0-30",), 1)
    purge(store, crops, blocks=True)
    shut = fill([make(31, source=HOSTILE), make(32)])
    assert (shut.new, shut.blocked) == (("media-0-32",), 1)
    with store.write() as connection:
        block(connection, HOSTILE, "bo")  # once more does nothing
        (entry,) = list_blocked(connection)
        assert (entry.source, entry.actor) == (HOSTILE, "ada")
        unblock(connection, HOSTILE, "bo")
        with pytest.raises(SourceBlockedError):
            unblock(connection, HOSTILE, "bo")
    assert fill([make(33, source=HOSTILE)]).new == ("media-0-33",)


@pytest.mark.bar("C1")
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("killed", ["drop", "delete_unused"])
def test_killed_anywhere_the_next_call_ends_it_once(store, crops, monkeypatch, killed, database_url):
    """With the control: what was killed had not done all of it."""
    monkeypatch.setattr(rows, "_IDS_PER_STATEMENT", 4)
    calls = []

    def dies(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    original = getattr(module, killed)
    monkeypatch.setattr(module, killed, dies)
    with pytest.raises(KeyboardInterrupt):
        purge(store, crops)
    assert len(list(crops.digests())) > 1
    monkeypatch.setattr(module, killed, original)
    purge_batch(store, crops, HOSTILE, 10**6)
    sweep(store, crops)
    assert len(list(crops.digests())) == 1
    assert purge_batch(store, crops, HOSTILE, 10**6) == (0, 0)


def test_an_alarm_brings_no_suspect_of_a_purged_source(store, crops):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    raised = Raised(at=at, source=HOSTILE, release="a" * 64, items=9, since=3, log_e=5, log_limit=4)
    with store.write() as connection:
        put_raised(connection, raised, (), ())
        put_raised(connection, raised.model_copy(update={"source": "calm"}), (), ())
    purge(store, crops)
    with store.read() as connection:
        assert [alarm.raised.source for alarm in to_shelve(connection)] == ["calm"]
        assert connection.scalar(select(func.count()).select_from(alarms)) == 1


def test_its_part_of_the_estimate_and_what_was_audited_of_it_leave_and_others_stay(store, crops):
    at_ms = 20_000 * DAY_MS
    found = []
    for n, source in enumerate([HOSTILE, "calm", HOSTILE, "calm"]):
        verdict = make_verdict(make_item(n, source=source), label="real", fake_probability=0.1)
        found.append((InRecord("verdicts", 0, n, at_ms, None, b"", ()), verdict))
    with store.write_unversioned() as connection:
        note_estimates(connection, found, 10_000)
    for n in range(4):
        label_audit(store, f"media-0-{n}", "real", "ada")
    purge(store, crops)
    with store.read() as connection:
        told = accuracy(connection, "a" * 64, at_ms, 7)
        assert set(connection.scalars(select(audits.c.source))) == {"calm"}
    assert (told.over_all.items, told.over_all.audited, list(told.sources)) == (2, 2, ["calm"])


def test_a_source_without_a_name_takes_nothing_of_those_that_are_counted_together(store, crops, monkeypatch):
    monkeypatch.setattr(sums, "MAX_SOURCES", 0)
    verdict = make_verdict(make_item(0, source="calm"), label="real", fake_probability=0.1)
    with store.write_unversioned() as connection:
        note_estimates(connection, [(InRecord("verdicts", 0, 0, 0, None, b"", ()), verdict)], 0)
    with store.write() as connection:
        begin(connection, holding(connection, ""), "ada", blocks=False)
        assert connection.scalar(select(func.sum(estimate_sums.c["items"]))) == 1


BAD, GOOD = "a" * 64, "b" * 64


@pytest.fixture
def take(settings):
    """Has the watch read records, from offset `first` on."""
    watch = ShiftWatch(settings)
    watch.shelve_and_announce = watch.forget = Mock()

    def take(first, *said):
        kind = {Withdrawal: (("ce_type", WITHDRAWAL_TYPE.encode()),)}
        watch.take(
            [
                InRecord("verdicts", 0, n, n, None, each.model_dump_json().encode(), kind.get(type(each), ()))
                for n, each in enumerate(said, first)
            ]
        )

    yield take
    watch.close()


def unknown(number):
    return make_verdict(make_item(number), release=BAD)


def corrected(number, **changes):
    return make_verdict(make_item(number), **{"release": GOOD, "supersedes": BAD, "label": "real"} | changes)


def shelves(store, *ids):
    with store.read() as connection:
        return [each.shelf for each in exemplars_of(connection, list(ids))]


def test_an_unknown_corrected_or_withdrawn_no_longer_waits_and_a_labelled_one_stays(take, fill, make, store):
    fill([make(number, release=BAD) for number in (1, 2, 3, 4)])
    label(store, ["media-0-3"], "blend", "ada")
    before = metrics.UNREADABLE._value.get()
    take(0, *map(unknown, (1, 2, 3, 4)))
    withdrawal = Withdrawal(id="media-0-2", item=make_item(2), release=BAD, reason="the media is gone")
    take(4, corrected(1), withdrawal, corrected(3))
    assert metrics.UNREADABLE._value.get() == before
    first, second, labelled, same = shelves(store, *(f"media-0-{n}" for n in (1, 2, 3, 4)))
    assert (first, second, same) == ("ignored", "ignored", "unknown")
    assert labelled in ("rehearsal", "held-back")
    undo(store, 2, "ada")
    assert shelves(store, "media-0-1", "media-0-2") == ["unknown", "unknown"]


def test_an_unknown_that_comes_after_its_correction_does_not_wait(take, fill, make, store):
    take(0, unknown(1), corrected(1), unknown(2))
    fill([make(1, release=BAD), make(2, release=BAD), make(3, release=GOOD)])
    with store.write() as connection:
        assert ignore_retracted(connection, ["media-0-1", "media-0-2", "media-0-3"]) == 1
    assert shelves(store, "media-0-1", "media-0-2", "media-0-3") == ["ignored", "unknown", "unknown"]


def test_what_the_restored_release_calls_unknown_waits(take, fill, make, store):
    take(0, make_verdict(make_item(1), release=BAD, label="real"), corrected(1, label="unknown"))
    fill([make(1, release=GOOD)])
    with store.write() as connection:
        assert ignore_retracted(connection, ["media-0-1"]) == 0


def test_a_correction_is_not_bet_on_again(take):
    before = metrics.WATCHED._value.get()
    take(0, make_verdict(make_item(1), release=BAD, label="real"), corrected(1), corrected(2))
    assert metrics.WATCHED._value.get() == before + 1
