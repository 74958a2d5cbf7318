"""Revisions lead from an empty database, and from one before there were any, to what the code reads."""

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

import deploy.access.tokens
import deploy.releases.ledger
import memory.schema
import updater.schema
from deploy.local.processes import free_port
from deploy.releases.ledger import Ledger
from memory.database import UnknownLayoutError, migrate, open_engine
from memory.store import Store, StoreUnavailableError, load_offsets

ROOMS = {
    "memory.migrations": memory.schema.metadata,
    "updater.migrations": updater.schema.metadata,
    "deploy.releases.migrations": deploy.access.tokens.tokens.metadata,
}


@pytest.fixture(params=["sqlite_url", "postgresql_url"])
def engine(request):
    opened = open_engine(request.getfixturevalue(request.param))
    yield opened
    opened.dispose()


def off(engine, metadata):
    """Where the tables of one room differ from what its code says they are."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables},
        )
        return list(compare_metadata(context, metadata))


@pytest.mark.parametrize("package", ROOMS)
def test_an_empty_database_gets_the_tables_that_the_code_reads(engine, package):
    metadata = ROOMS[package]
    assert off(engine, metadata) != []
    with engine.begin() as connection:
        migrate(connection, package)
    assert off(engine, metadata) == []


def test_one_database_holds_all_rooms(engine):
    for _ in range(2):
        for package in ROOMS:
            with engine.begin() as connection:
                migrate(connection, package)
    assert [off(engine, metadata) for metadata in ROOMS.values()] == [[], [], []]


def test_an_interrupted_migration_leaves_the_database_as_it_was(engine):
    def interrupted():
        with engine.begin() as connection:
            migrate(connection, "memory.migrations")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert inspect(engine).get_table_names() == []


@pytest.mark.parametrize("package", ROOMS)
@pytest.mark.parametrize("layout", ["9999", "0001"])
def test_a_layout_that_is_not_known_is_refused(engine, package, layout):
    with engine.begin() as connection:
        migrate(connection, package)
        connection.execute(text(f"UPDATE {package.split('.')[0]}_layout SET version_num = '{layout}'"))
    with pytest.raises(UnknownLayoutError, match=f"{layout}.*newer"), engine.begin() as connection:
        migrate(connection, package)


pytest.importorskip("psycopg")


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


@pytest.mark.system
def test_four_processes_that_open_an_empty_database_at_once_lose_no_update(postgresql_url):
    processes = [subprocess.Popen([sys.executable, "-c", OPENS, postgresql_url]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    store = Store(postgresql_url)
    with store.read() as connection:
        assert load_offsets(connection) == {("t", 0): 100}
    store.close()


@pytest.mark.system
def test_the_ledger_takes_no_change_from_a_sql_shell(postgresql_url):
    Ledger(postgresql_url).close()
    engine = create_engine(postgresql_url)
    for statement in ("UPDATE deploy_ledger SET actor = 'eve'", "DELETE FROM deploy_ledger"):
        with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.system
def test_a_server_that_is_away_is_a_retryable_fault_in_one_line_without_the_password():
    with pytest.raises(StoreUnavailableError, match="refused") as caught:
        Store(f"postgresql://forgewatch:s3cret@127.0.0.1:{free_port()}/none")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
