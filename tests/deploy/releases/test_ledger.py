"""The ledger: append-only, gapless, durable, one writer at a time."""

import json
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.release_records import STATES, Action, Release
from deploy.releases import standing
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.ledger import DamagedLedgerError, Ledger, LedgerError, Move
from deploy.releases.publish import is_foreign, next_raise_at, raise_epoch, recent_raises
from deploy.releases.standing import TRANSITIONS, Consequence, LedgerState, next_state, replay
from detector.records import MAX_EPOCH, Rollout, Verdict
from updater.records import Candidate

DIGEST = "a" * 64
CANDIDATE = Candidate(
    digest=DIGEST, evaluation_digest="e" * 64, parent=None, update=1, classes=("real", "x"), gates=()
)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/deep/ledger.sqlite"


@pytest.fixture
def ledger(url):
    opened = Ledger(url)
    yield opened
    opened.close()


def move(reason=None):
    return Move("ada", "reject", DIGEST, "e" * 64, reason)


@contextmanager
def opened(url):
    """The ledger's database as somebody with a SQL shell has it."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def test_events_come_back_as_they_went_in_even_after_a_restart(ledger, url):
    propose = Move("updater", "propose", DIGEST, "e" * 64, candidate=CANDIDATE)
    appended = ledger.append(lambda history: [propose, move("zu schlecht: ñ")])
    assert [event.sequence for event in appended] == [1, 2]
    again = Ledger(url)
    try:
        assert again.events() == ledger.events() == appended
        assert again.events()[0].at.tzinfo is not None
    finally:
        again.close()


def test_the_reasons_for_accepted_findings_are_kept_and_cannot_be_changed(url):
    accepted = {"points of power lost": "our reals changed: ñ"}
    ledger = Ledger(url)
    ledger.append(lambda history: [move(), Move("ada", "approve", DIGEST, "e" * 64, accepted=accepted)])
    assert [event.move.accepted for event in ledger.events()] == [None, accepted]
    ledger.close()
    with opened(url) as connection:
        connection.execute("DROP TRIGGER deploy_ledger_no_update")
        connection.execute("UPDATE deploy_ledger SET accepted = '{}' WHERE sequence = 2")
    with pytest.raises(DamagedLedgerError, match="row 2 of the ledger was changed"):
        Ledger(url)


ROW = "sequence, at, actor, action, digest, evaluation_digest, hash"
VALUES = "1, '2026-01-01T00:00:00+00:00', 'eve', 'approve', 'd', 'e', 'f'"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE deploy_ledger SET actor = 'eve'",
        "DELETE FROM deploy_ledger WHERE sequence = 1",
        f"REPLACE INTO deploy_ledger ({ROW}) VALUES ({VALUES})",
        f"INSERT OR REPLACE INTO deploy_ledger ({ROW}) VALUES ({VALUES})",
        f"INSERT INTO deploy_ledger ({ROW}) VALUES ({VALUES}) ON CONFLICT DO UPDATE SET actor = 'eve'",
        f"INSERT OR REPLACE INTO deploy_ledger (rowid, {ROW}) VALUES (1, {VALUES})",
        "REPLACE INTO deploy_ledger SELECT * FROM deploy_ledger",
    ],
)
def test_the_database_itself_refuses_to_change_the_past(ledger, url, statement):
    appended = ledger.append(lambda history: [move()])
    with opened(url) as other, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)
    assert ledger.events() == appended


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("UPDATE deploy_ledger SET actor = 'eve' WHERE sequence = 2", 2),
        ("UPDATE deploy_ledger SET candidate = '{}' WHERE sequence = 1", 1),
        ("UPDATE deploy_ledger SET epoch = 7 WHERE sequence = 3", 3),
        ("UPDATE deploy_ledger SET hash = 'f' WHERE sequence = 3", 3),
        ("DELETE FROM deploy_ledger WHERE sequence = 1", 1),
        ("DELETE FROM deploy_ledger WHERE sequence = 2", 2),
        (f"REPLACE INTO deploy_ledger ({ROW}) VALUES ({VALUES})", 1),
        (f"INSERT INTO deploy_ledger ({ROW}) VALUES ({VALUES.replace('1', '4', 1)})", 4),
        ("UPDATE deploy_ledger_identity SET id = 'eve'", 1),
    ],
)
def test_what_was_changed_without_the_triggers_is_named_and_never_acted_upon(ledger, url, statement, row):
    ledger.append(lambda history: [move("a"), move("b"), move("c")])
    with opened(url) as other:
        for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            other.execute(f"DROP TRIGGER {name}")
        other.execute(statement)
    with pytest.raises(DamagedLedgerError, match=rf"row {row} of the ledger .*restore"):
        Ledger(url)
    if "identity" not in statement:  # which is read at the start
        with pytest.raises(DamagedLedgerError, match=f"row {row} of the ledger"):
            ledger.events()
        with pytest.raises(DamagedLedgerError):
            ledger.append(lambda history: [move()])


def test_a_ledger_without_its_id_is_damaged(ledger, url):
    with opened(url) as other:
        other.execute("DELETE FROM deploy_ledger_identity")
    with pytest.raises(DamagedLedgerError, match="0 ids"):
        Ledger(url)


def test_a_ledger_keeps_its_id_and_another_has_another(ledger, url, tmp_path):
    again, other = Ledger(url), Ledger(f"sqlite:///{tmp_path}/other.sqlite")
    assert re.fullmatch("[0-9a-f]{32}", ledger.id)
    assert again.id == ledger.id != other.id
    again.close()
    other.close()


def test_who_reads_waits_for_no_writer(ledger, url):
    appended = ledger.append(lambda history: [move()])
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        assert ledger.events() == appended
    finally:
        other.close()


def test_a_refused_decision_writes_nothing(ledger):
    def refuse(history):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ledger.append(refuse)
    assert ledger.events() == ()


def test_parallel_writers_see_each_others_moves_and_leave_no_gap(url):
    def only_if_fewer_than_twenty(history):
        return [move()] if len(history) < 20 else []

    ledgers = [Ledger(url) for _ in range(4)]
    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(ledgers[i % 4].append, only_if_fewer_than_twenty) for i in range(40)]:
                future.result()
        assert [event.sequence for event in ledgers[0].events()] == list(range(1, 21))
    finally:
        for opened in ledgers:
            opened.close()


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(LedgerError, match="cannot open the ledger"):
        Ledger(f"sqlite:///{tmp_path}/file/ledger.sqlite")
    with pytest.raises(LedgerError, match="cannot open the ledger"):
        Ledger("nonsense")


@pytest.mark.parametrize("record", [Verdict, Rollout, Candidate, Release])
def test_a_record_exports_a_json_schema_that_names_its_fields(record):
    schema = json.loads(json.dumps(record.model_json_schema()))
    assert schema["type"] == "object"
    assert schema["description"]
    assert set(schema["properties"]) == set(record.model_fields)
    required = {name for name, field in record.model_fields.items() if field.is_required()}
    assert set(schema.get("required", ())) == required


def test_the_schema_of_a_release_lists_its_states():
    assert Release.model_json_schema()["properties"]["state"]["enum"] == list(STATES)


# The table of a release's life, and the fold of any history by it.
ALL_VERBS = (*get_args(Action), *get_args(Consequence))
WISHES = st.lists(
    st.tuples(
        st.sampled_from(("propose", "approve", "promote", "reject", "rollback")),
        st.sampled_from(("a" * 64, "b" * 64, "c" * 64)),
    ),
    max_size=20,
)
"""Makes a conftest.History of wishes."""


def test_every_state_has_a_sentence_and_is_reached_from_nothing_by_the_table():
    assert all(sentence.endswith(".") for sentence in STATES.values())
    reached, size = {None}, 0
    while len(reached) > size:
        size = len(reached)
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == {None, *STATES}


@given(st.lists(st.sampled_from(ALL_VERBS), max_size=30))
def test_every_sequence_of_moves_ends_in_a_state_of_the_table(verbs):
    state = None
    for verb in verbs:
        if (state, verb) in TRANSITIONS:
            state = next_state(state, verb)
            assert state in STATES
        else:
            with pytest.raises(ApprovalError):
                next_state(state, verb)


@given(WISHES, WISHES, st.data())
def test_to_go_on_from_what_was_folded_is_the_same_as_to_fold_from_the_first(new_history, some, others, data):
    """Whatever was folded before: the same history, a part of it, or another one."""
    histories = [new_history(*wishes).events for wishes in (some, others)]
    for _ in range(5):
        events = data.draw(st.sampled_from(histories))
        events = events[: data.draw(st.integers(0, len(events)))]
        anew = standing.apply(LedgerState(), events)
        assert replay(events) == anew
        assert list(replay(events).releases) == list(anew.releases)


# The epoch rises above whatever another wrote on the releases topic, and does not race it.
A, B = "a" * 64, "b" * 64
OURS, OTHER = "0" * 32, "1" * 32

ROLLOUTS = st.builds(
    Rollout,
    ledger=st.sampled_from((OURS, OTHER)),
    epoch=st.integers(0, 3) | st.integers(0, MAX_EPOCH - 1),
    sequence=st.integers(0, 9) | st.integers(0, MAX_EPOCH),
    stable=st.sampled_from((A, B)),
)


def live(new_history):
    return new_history(("propose", A), ("approve", A), ("promote", A))


@pytest.mark.slow
@given(st.lists(ROLLOUTS, max_size=5))
def test_after_a_raise_this_ledgers_rollout_outranks_what_was_found(new_history, topic):
    history = live(new_history)
    for found in topic:
        ours = replay(history.events).rollout(OURS)
        moves = raise_epoch(history.events, OURS, found)
        assert bool(moves) == is_foreign(found, ours)
        history.force(*moves)
        ours = replay(history.events).rollout(OURS)
        assert (ours.epoch, ours.sequence) > (found.epoch, found.sequence) or not moves
        assert (ours.stable, ours.ledger) == (A, OURS)
        assert not is_foreign(found, ours) or found == ours
        assert raise_epoch(history.events, OURS, found) == []


def test_what_this_ledger_wrote_itself_raises_nothing(new_history):
    history = live(new_history)
    earlier = replay(history.events).rollout(OURS)
    for wish in (("propose", B), ("approve", B), ("promote", B)):
        history.wish(*wish)
    assert raise_epoch(history.events, OURS, earlier) == []
    assert raise_epoch(history.events, OURS, replay(history.events).rollout(OURS)) == []


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Rollout(ledger=OURS, epoch=0, sequence=9, stable=B), "restored from an older copy"),
        (Rollout(ledger=OURS, epoch=0, sequence=3, stable=B), "the record was forged"),
        (Rollout(ledger=OTHER, epoch=0, sequence=1, stable=B), "begun anew, another deploy server"),
    ],
)
def test_the_reason_of_a_raise_says_what_was_found_and_what_it_may_mean(new_history, found, why):
    (move,) = raise_epoch(live(new_history).events, OURS, found)
    assert move.reason is not None
    assert "named release bbbbbbbbbbbb" in move.reason
    assert why in move.reason


def test_a_ledger_without_a_live_release_outranks_nothing(new_history):
    assert raise_epoch(new_history().events, OURS, Rollout(ledger=OTHER, epoch=5, sequence=1, stable=B)) == []


def test_above_the_last_epoch_is_none(new_history):
    history = live(new_history)
    forged = Rollout(ledger=OURS, epoch=MAX_EPOCH, sequence=9, stable=B)
    history.force(*raise_epoch(history.events, OURS, forged))
    assert replay(history.events).rollout(OURS).epoch == MAX_EPOCH
    assert raise_epoch(history.events, OURS, forged) == []


def test_two_servers_over_one_topic_write_ever_more_seldom(new_history):
    history = live(new_history)
    start = now = history.events[0].at
    raised = []
    while now < start + timedelta(days=2):
        found = Rollout(ledger=OTHER, epoch=replay(history.events).epoch + 1, sequence=1, stable=B)
        now = next_raise_at(history.events, now, interval_s=10)
        history.force(*raise_epoch(history.events, OURS, found), at=now)
        raised.append(now)
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(raised)]
    assert raised[0] == start
    assert waits[:8] == [20, 40, 80, 160, 320, 640, 1280, 2560]
    assert set(waits[8:]) == {3600}
    assert len(recent_raises(history.events, now)) >= 20
    assert recent_raises(history.events, now + timedelta(days=2)) == []
