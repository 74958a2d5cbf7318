"""A record in a database of the test's own, and a SQL shell that holds nothing sacred."""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

WithoutTriggers = Callable[[str], AbstractContextManager[sqlite3.Connection]]


@pytest.fixture
def shell(record, url, without_triggers):
    with without_triggers(url) as connection:
        yield connection
