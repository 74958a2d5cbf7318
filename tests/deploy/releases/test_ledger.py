"""The ledger: append-only, gapless, durable, one writer at a time."""

import json
import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import BaseModel

from deploy.release_records import STATES, Release
from deploy.releases.ledger import DamagedLedgerError, Event, Ledger, LedgerError, Move
from detector.records import Rollout, Verdict
from updater.records import Candidate

DIGEST = "a" * 64
CANDIDATE = Candidate(
    digest=DIGEST, evaluation_digest="e" * 64, parent=None, update=1, classes=("real", "x"), gates=()
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/deep/ledger.sqlite"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    opened = Ledger(url)
    yield opened
    opened.close()


def move(reason: str | None = None) -> Move:
    return Move("ada", "reject", DIGEST, "e" * 64, reason)


@contextmanager
def opened(url: str) -> Iterator[sqlite3.Connection]:
    """The ledger's database as somebody with a SQL shell has it."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def test_events_come_back_as_they_went_in_even_after_a_restart(ledger: Ledger, url: str) -> None:
    propose = Move("updater", "propose", DIGEST, "e" * 64, candidate=CANDIDATE)
    appended = ledger.append(lambda history: [propose, move("zu schlecht: ñ")])
    assert [event.sequence for event in appended] == [1, 2]
    again = Ledger(url)
    try:
        assert again.events() == ledger.events() == appended
        assert again.events()[0].at.tzinfo is not None
    finally:
        again.close()


def test_the_reasons_for_accepted_findings_are_kept_and_cannot_be_changed(url: str) -> None:
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
def test_the_database_itself_refuses_to_change_the_past(ledger: Ledger, url: str, statement: str) -> None:
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
def test_what_was_changed_without_the_triggers_is_named_and_never_acted_upon(
    ledger: Ledger, url: str, statement: str, row: int
) -> None:
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


def test_a_ledger_without_its_id_is_damaged(ledger: Ledger, url: str) -> None:
    with opened(url) as other:
        other.execute("DELETE FROM deploy_ledger_identity")
    with pytest.raises(DamagedLedgerError, match="0 ids"):
        Ledger(url)


def test_a_ledger_keeps_its_id_and_another_has_another(ledger: Ledger, url: str, tmp_path: Path) -> None:
    again, other = Ledger(url), Ledger(f"sqlite:///{tmp_path}/other.sqlite")
    assert re.fullmatch("[0-9a-f]{32}", ledger.id)
    assert again.id == ledger.id != other.id
    again.close()
    other.close()


def test_who_reads_waits_for_no_writer(ledger: Ledger, url: str) -> None:
    appended = ledger.append(lambda history: [move()])
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        assert ledger.events() == appended
    finally:
        other.close()


def test_a_refused_decision_writes_nothing(ledger: Ledger) -> None:
    def refuse(history: tuple[Event, ...]) -> list[Move]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ledger.append(refuse)
    assert ledger.events() == ()


def test_parallel_writers_see_each_others_moves_and_leave_no_gap(url: str) -> None:
    def only_if_fewer_than_twenty(history: tuple[Event, ...]) -> list[Move]:
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


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(LedgerError, match="cannot open the ledger"):
        Ledger(f"sqlite:///{tmp_path}/file/ledger.sqlite")
    with pytest.raises(LedgerError, match="cannot open the ledger"):
        Ledger("nonsense")


@pytest.mark.parametrize("record", [Verdict, Rollout, Candidate, Release])
def test_a_record_exports_a_json_schema_that_names_its_fields(record: type[BaseModel]) -> None:
    schema = json.loads(json.dumps(record.model_json_schema()))
    assert schema["type"] == "object"
    assert schema["description"]
    assert set(schema["properties"]) == set(record.model_fields)
    required = {name for name, field in record.model_fields.items() if field.is_required()}
    assert set(schema.get("required", ())) == required


def test_the_schema_of_a_release_lists_its_states() -> None:
    assert Release.model_json_schema()["properties"]["state"]["enum"] == list(STATES)
