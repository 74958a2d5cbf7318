"""The record takes acts from every room in one line, and gives them back as they were."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from deploy.app import prove_some
from deploy.record.chain import Act, append
from deploy.record.record import MemoryActs, Record
from deploy.releases.ledger import DamagedLedgerError, Ledger, Move
from memory import acts
from memory.store import Store

DIGEST, EVALUATION = "a" * 64, "e" * 64


def test_acts_come_back_as_they_went_in_the_newest_first(record):
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    record.append(
        Act("ada", "add token", "bo", {"role": "reviewer", "name": "Bø\u202e"}, at), Act("bo", "log in", "")
    )
    newest, first = record.entries(10)
    assert (newest.sequence, newest.actor, newest.action, newest.details) == (2, "bo", "log in", {})
    assert (first.at, first.subject, first.details) == (at, "bo", {"role": "reviewer", "name": "Bø\u202e"})
    assert record.prove().size == 2
    assert record.prove().hash == newest.hash


def test_what_stands_for_a_person_to_read_has_no_control_character_and_an_end(record):
    record.append(Act("ada", "purge", "a\x00\x1b[2J\u202e" + "x" * 1000))
    (entry,) = record.entries(1)
    assert entry.subject.isprintable()
    assert len(entry.subject) == 300


def test_a_transaction_that_fails_leaves_no_act(record):
    def add_token():
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
def test_acts_are_found_by_who_what_and_since_when(record, given, sequences):
    for number in range(1, 7):
        actor, action = ("bo", "ada")[number % 2], "undo" if number in (1, 4) else "label"
        record.append(Act(actor, action, f"label {number}", at=datetime(2026, 1, number, tzinfo=UTC)))
    assert [entry.sequence for entry in record.entries(100, **given)] == sequences
    assert [entry.sequence for entry in record.entries(2, **given)] == sequences[:2]


def test_a_move_of_the_ledger_is_on_record_with_it_and_a_refused_one_is_not(record, url):
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
def test_the_database_itself_refuses_to_change_the_past(either_database):
    record = Record(either_database)
    record.append(Act("ada", "label", "label 1"), Act("ada", "undo", "label 1"))
    for statement in ("UPDATE deploy_record SET actor = 'eve'", "DELETE FROM deploy_record"):
        with record._engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    assert record.prove().size == 2
    record.close()


def test_replace_is_refused_too_which_no_trigger_of_a_delete_sees(record):
    record.append(Act("ada", "label", "label 1"))
    with record._engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
        connection.execute(text("REPLACE INTO deploy_record SELECT * FROM deploy_record"))


APPENDS = """
import sys
from deploy.record.chain import Act
from deploy.record.record import Record
from deploy.releases.ledger import Ledger, Move
record, ledger = Record(sys.argv[1]), Ledger(sys.argv[1])
for number in range(40):
    record.append(Act(sys.argv[2], "label", f"label {number}"))
    ledger.append(lambda history: [Move(sys.argv[2], "reject", "a" * 64, "e" * 64)])
"""


@pytest.mark.slow
def test_processes_that_append_at_once_make_one_line(either_database):
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


# What the server does with old rows of the ledger, which a reading alone does not prove again.
@pytest.mark.parametrize("proves", [True, False])
def test_a_changed_old_row_of_the_ledger_is_noticed_at_once(services, tmp_path, without_triggers, proves):
    """With the control: without the timer's proof, a reading of the newest rows does not see it."""
    services.ledger.append(lambda _: [Move("ada", "raise epoch", "", "", epoch=at) for at in range(1, 401)])
    services.ledger.events()
    (path,) = tmp_path.rglob("ledger.sqlite")
    with without_triggers(f"sqlite:///{path}") as database:
        database.execute("UPDATE deploy_ledger SET actor = 'eve' WHERE sequence = 5")
    if proves:
        prove_some(services)
        with pytest.raises(DamagedLedgerError, match="row 5"):
            services.ledger.events()
    else:
        assert len(services.ledger.events()) == 400


# What people do in the memory comes on record once, whatever stops in between.
@pytest.fixture
def memory(tmp_path):
    opened = Store(f"sqlite:///{tmp_path}/memory.sqlite")
    yield opened
    opened.close()


def put(memory, *subjects):
    for subject in subjects:
        with memory.write() as connection:
            acts.append(connection, "ada", "split", subject, {"into": [subject, "é"]})


def subjects(record):
    return [entry.subject for entry in reversed(record.entries(1000))]


def test_each_act_of_the_memory_comes_on_record_once_in_its_order(record, memory):
    way = MemoryActs(memory, record)
    put(memory, "c1", "c2")
    assert (way.bring_in(), way.bring_in()) == (2, 0)
    put(memory, "c3")
    assert way.bring_in() == 1
    assert MemoryActs(memory, record).bring_in() == 0  # a server that starts anew
    assert subjects(record) == ["c1", "c2", "c3"]
    assert record.entries(1)[0].details == {"into": ["c3", "é"]}


def test_a_memory_s_transaction_that_fails_leaves_no_act(record, memory):
    def purge():
        with memory.write() as connection:
            acts.append(connection, "ada", "purge", "camera")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        purge()
    assert MemoryActs(memory, record).bring_in() == 0


def test_servers_that_bring_in_at_once_do_so_once(url, memory):
    put(memory, *(f"c{number}" for number in range(30)))
    records = [Record(url) for _ in range(4)]
    ways = [MemoryActs(memory, record) for record in records]
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(MemoryActs.bring_in, ways)) == 30
    assert subjects(records[0]) == [f"c{number}" for number in range(30)]
    for record in records:
        record.close()


def test_a_memory_that_was_restored_loses_no_act_that_came_after(tmp_path, record, memory):
    put(memory, "c1")
    older = Store(f"sqlite:///{tmp_path}/older.sqlite")
    with memory.read() as connection, older.write() as copy:
        (first,) = acts.acts_after(connection, 0, 10)
        row = {name: getattr(first, name) for name in ("id", "uid", "actor", "action", "subject")}
        copy.execute(acts.acts.insert(), row | {"at_ms": 1, "details": "{}"})
    put(memory, "c2", "c3")
    MemoryActs(memory, record).bring_in()
    put(older, "c4")  # by the number that c2 had
    MemoryActs(older, record).bring_in()
    older.close()
    assert subjects(record) == ["c1", "c2", "c3", "c4"]
