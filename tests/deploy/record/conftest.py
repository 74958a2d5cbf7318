"""A record in a database of the test's own, and a SQL shell that holds nothing sacred."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from deploy.record.record import Record

WithoutTriggers = Callable[[str], AbstractContextManager[sqlite3.Connection]]


@pytest.fixture
def shell(record: Record, url: str, without_triggers: WithoutTriggers) -> Iterator[sqlite3.Connection]:
    with without_triggers(url) as connection:
        yield connection
