"""Exemplars, update runs and ledger in one PostgreSQL database, which several processes open at once."""

import subprocess
import sys

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from deploy.local.processes import free_port
from deploy.releases.ledger import Ledger
from memory.store import Store, StoreUnavailableError, load_offsets

pytest.importorskip("psycopg")

pytestmark = pytest.mark.system

# Each process opens all three, makes what is missing, and adds one to a number 25 times.
OPENS = """
import sys
from deploy.releases.ledger import Ledger
from memory.store import load_offsets, save_offsets
from memory.store import Store
from updater.runs import open_runs
from updater.settings import UpdaterSettings
url = sys.argv[1]
store, ledger, runs = Store(url), Ledger(url), open_runs(UpdaterSettings(database_url=url))
for _ in range(25):
    with store.write() as connection:
        now = load_offsets(connection).get(("t", 0), 0)
        save_offsets(connection, {("t", 0): now + 1})
"""


def test_four_processes_that_open_an_empty_database_at_once_lose_no_update(postgresql_url: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", OPENS, postgresql_url]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    store = Store(postgresql_url)
    with store.read() as connection:
        assert load_offsets(connection) == {("t", 0): 100}
    store.close()


def test_the_ledger_takes_no_change_from_a_sql_shell(postgresql_url: str) -> None:
    Ledger(postgresql_url).close()
    engine = create_engine(postgresql_url)
    for statement in ("UPDATE deploy_ledger SET actor = 'eve'", "DELETE FROM deploy_ledger"):
        with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    engine.dispose()


def test_a_server_that_is_away_is_a_retryable_fault_in_one_line_without_the_password() -> None:
    with pytest.raises(StoreUnavailableError, match="refused") as caught:
        Store(f"postgresql://forgewatch:s3cret@127.0.0.1:{free_port()}/none")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
