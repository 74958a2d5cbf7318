"""The record takes acts from every room in one line, and gives them back as they were."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from deploy.record.acts import Act, append
from deploy.record.record import Record
from deploy.releases.ledger import Ledger, Move

DIGEST, EVALUATION = "a" * 64, "e" * 64


def test_acts_come_back_as_they_went_in_the_newest_first(record: Record) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    record.append(
        Act("ada", "add token", "bo", {"role": "reviewer", "name": "Bø\u202e"}, at), Act("bo", "log in", "")
    )
    newest, first = record.entries(10)
    assert (newest.sequence, newest.actor, newest.action, newest.details) == (2, "bo", "log in", {})
    assert (first.at, first.subject, first.details) == (at, "bo", {"role": "reviewer", "name": "Bø\u202e"})
    assert record.prove().size == 2
    assert record.prove().hash == newest.hash


def test_what_stands_for_a_person_to_read_has_no_control_character_and_an_end(record: Record) -> None:
    record.append(Act("ada", "purge", "a\x00\x1b[2J\u202e" + "x" * 1000))
    (entry,) = record.entries(1)
    assert entry.subject.isprintable()
    assert len(entry.subject) == 300


def test_a_transaction_that_fails_leaves_no_act(record: Record) -> None:
    def add_token() -> None:
        with record.write() as connection:
            append(connection, Act("ada", "add token", "bo"))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        add_token()
    assert record.entries(10) == []


@pytest.mark.parametrize(
    ("given", "sequences"),
    [
        ({}, [6, 5, 4, 3, 2, 1]),
        ({"before": 3}, [2, 1]),
        ({"actor": "ada"}, [5, 3, 1]),
        ({"action": "undo", "actor": "bo"}, [4]),
        ({"since": datetime(2026, 1, 3, tzinfo=UTC)}, [6, 5, 4, 3]),
    ],
)
def test_acts_are_found_by_who_what_and_since_when(
    record: Record, given: dict[str, object], sequences: list[int]
) -> None:
    for number in range(1, 7):
        actor, action = ("bo", "ada")[number % 2], "undo" if number in (1, 4) else "label"
        record.append(Act(actor, action, f"label {number}", at=datetime(2026, 1, number, tzinfo=UTC)))
    assert [entry.sequence for entry in record.entries(100, **given)] == sequences  # type: ignore[arg-type]
    assert [entry.sequence for entry in record.entries(2, **given)] == sequences[:2]  # type: ignore[arg-type]


def test_a_move_of_the_ledger_is_on_record_with_it_and_a_refused_one_is_not(record: Record, url: str) -> None:
    ledger = Ledger(url)
    accepted = {"points of power lost": "ñ"}
    ledger.append(lambda history: [Move("ada", "approve", DIGEST, EVALUATION, accepted=accepted)])
    with pytest.raises(ZeroDivisionError):
        ledger.append(lambda history: [Move("ada", "promote", DIGEST, EVALUATION)] if 1 / 0 else [])
    ledger.close()
    (entry,) = record.entries(10)
    assert (entry.actor, entry.action, entry.subject) == ("ada", "approve", DIGEST)
    assert (entry.details["ledger"], entry.details["accepted"]) == (1, accepted)


@pytest.mark.slow
def test_the_database_itself_refuses_to_change_the_past(either_database: str) -> None:
    record = Record(either_database)
    record.append(Act("ada", "label", "label 1"), Act("ada", "undo", "label 1"))
    for statement in ("UPDATE deploy_record SET actor = 'eve'", "DELETE FROM deploy_record"):
        with record._engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    assert record.prove().size == 2
    record.close()


def test_replace_is_refused_too_which_no_trigger_of_a_delete_sees(record: Record) -> None:
    record.append(Act("ada", "label", "label 1"))
    with record._engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
        connection.execute(text("REPLACE INTO deploy_record SELECT * FROM deploy_record"))


APPENDS = """
import sys
from deploy.record.acts import Act
from deploy.record.record import Record
from deploy.releases.ledger import Ledger, Move
record, ledger = Record(sys.argv[1]), Ledger(sys.argv[1])
for number in range(40):
    record.append(Act(sys.argv[2], "label", f"label {number}"))
    ledger.append(lambda history: [Move(sys.argv[2], "reject", "a" * 64, "e" * 64)])
"""


@pytest.mark.slow
def test_processes_that_append_at_once_make_one_line(either_database: str) -> None:
    Record(either_database).close()
    processes = [
        subprocess.Popen([sys.executable, "-c", APPENDS, either_database, name])
        for name in ("ada", "bo", "cy")
    ]
    assert [process.wait(120) for process in processes] == [0] * 3
    record, ledger = Record(either_database), Ledger(either_database)
    assert record.prove().size == 240
    assert len(ledger.events()) == 120
    acts = record.entries(1000)
    for name in ("ada", "bo", "cy"):
        mine = [act.subject for act in reversed(acts) if (act.actor, act.action) == (name, "label")]
        assert mine == [f"label {number}" for number in range(40)]
    record.close()
    ledger.close()
