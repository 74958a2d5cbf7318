"""A record in a database of the test's own, and a SQL shell that holds nothing sacred."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.record.record import Record


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/deploy.sqlite"


@pytest.fixture
def record(url: str) -> Iterator[Record]:
    opened = Record(url)
    yield opened
    opened.close()


@contextmanager
def without_triggers(url: str) -> Iterator[sqlite3.Connection]:
    """The database as somebody has it who may change everything in it; committed at the end."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
    finally:
        connection.close()


@pytest.fixture
def shell(record: Record, url: str) -> Iterator[sqlite3.Connection]:
    with without_triggers(url) as connection:
        yield connection
