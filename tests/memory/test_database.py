"""What every room's database keeps: commits survive, one writes at a time, readers do not wait."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError

from memory import database
from memory.database import READS, cause_of, open_engine


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(database, "_LOCK_WAIT_S", 0.1)
    opened = open_engine(f"sqlite:///{tmp_path}/deep/rows.sqlite")
    with opened.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")
    yield opened
    opened.dispose()


def test_what_a_database_says_is_one_line_without_the_statement_and_its_values(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(OperationalError) as raised:
        connection.execute(text("SELECT n FROM gone WHERE n = :n"), {"n": "a secret"})
    assert cause_of(raised.value) == "no such table: gone"
    assert cause_of(OSError("of two\n  lines")) == "of two lines"


def test_a_commit_is_on_the_disk_when_it_returns(engine: Engine) -> None:
    with engine.connect() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
    assert found == ["wal", 2]


def test_a_transaction_that_may_write_holds_the_lock_from_its_start(engine: Engine) -> None:
    with engine.connect() as first:
        first.exec_driver_sql("SELECT * FROM t")
        with engine.connect() as second, pytest.raises(OperationalError, match="locked"):
            second.exec_driver_sql("SELECT * FROM t")


def test_a_reader_waits_for_no_writer_and_sees_one_state(engine: Engine) -> None:
    reader = engine.execution_options(**{READS: True})
    with reader.connect() as reading:
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
        with engine.begin() as writing:
            writing.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
    with reader.connect() as reading:
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar() == 1


def test_what_was_not_committed_is_gone(engine: Engine, tmp_path: Path) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    other = sqlite3.connect(tmp_path / "deep/rows.sqlite")
    assert other.execute("SELECT count(*) FROM t").fetchone() == (0,)
    other.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_that_only_one_process_could_see_is_refused(url: str) -> None:
    with pytest.raises(ArgumentError, match="several processes"):
        open_engine(url)


def test_a_postgresql_url_is_opened_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its driver is the caller's to install, so what would be handed to SQLAlchemy is looked at.
    asked = []
    monkeypatch.setattr(database, "create_engine", lambda url, **options: asked.append((url, options)))
    open_engine("postgresql+psycopg://ada:secret@db.example/forgewatch")
    assert asked == [
        (make_url("postgresql+psycopg://ada:secret@db.example/forgewatch"), {"pool_pre_ping": True})
    ]
