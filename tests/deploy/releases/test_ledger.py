"""The ledger: append-only, gapless, durable, one writer at a time."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.releases.ledger import Event, Ledger, LedgerError, Move
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


@pytest.mark.parametrize(
    "statement", ["UPDATE deploy_ledger SET actor = 'eve'", "DELETE FROM deploy_ledger WHERE sequence = 1"]
)
def test_the_database_itself_refuses_to_change_the_past(ledger: Ledger, url: str, statement: str) -> None:
    appended = ledger.append(lambda history: [move()])
    other = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            other.execute(statement)
    finally:
        other.close()
    assert ledger.events() == appended


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
