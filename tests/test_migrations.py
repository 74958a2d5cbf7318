"""Revisions lead from an empty database, and from one before there were any, to what the code reads."""

from collections.abc import Iterator

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, inspect, text

import deploy.releases.schema
import memory.schema
import updater.schema
from memory import migrate as module
from memory.database import open_engine
from memory.migrate import UnknownLayoutError, migrate

ROOMS = {
    "memory.migrations": ("exemplars", memory.schema.metadata),
    "updater.migrations": ("updater_runs", updater.schema.metadata),
    "deploy.releases.migrations": ("deploy_ledger", deploy.releases.schema.metadata),
}
BEFORE_REVISIONS = {
    "memory.migrations": "INSERT INTO revision (id, number, schema_number) VALUES (1, 41, 1)",
    "updater.migrations": 'INSERT INTO updater_runs (slot, "trigger", requested_by, requested_at, state,'
    " token, takeovers, done, total)"
    " VALUES ('manual/1', 'manual', 'ada', '2026-01-02 03:04:05', 'done', 1, 0, 0, 0)",
    "deploy.releases.migrations": "INSERT INTO deploy_ledger (sequence, at, actor, action, digest,"
    " evaluation_digest) VALUES (1, '2026-01-02T03:04:05+00:00', 'ada', 'reject', 'd', 'e')",
}


@pytest.fixture(params=["sqlite_url", "postgresql_url"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = open_engine(request.getfixturevalue(request.param))
    yield opened
    opened.dispose()


def off(engine: Engine, metadata: MetaData) -> list[object]:
    """Where the tables of one room differ from what its code says they are."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables},
        )
        return list(compare_metadata(context, metadata))


@pytest.mark.parametrize("package", ROOMS)
def test_an_empty_database_gets_the_tables_that_the_code_reads(engine, package):
    first_table, metadata = ROOMS[package]
    assert off(engine, metadata) != []
    with engine.begin() as connection:
        migrate(connection, package, first_table)
    assert off(engine, metadata) == []


@pytest.mark.slow
@pytest.mark.parametrize("package", ROOMS)
def test_a_database_from_before_there_were_revisions_keeps_its_rows(engine, package):
    first_table, metadata = ROOMS[package]
    with engine.begin() as connection:
        config = module._config(connection, package)
        command.upgrade(config, "0001")
        connection.execute(text(f"DROP TABLE {config.attributes['version_table']}"))
        connection.execute(text(BEFORE_REVISIONS[package]))
    with engine.begin() as connection:
        migrate(connection, package, first_table)
    assert off(engine, metadata) == []
    table = BEFORE_REVISIONS[package].split()[2]
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 1


def test_one_database_holds_all_rooms(engine):
    for _ in range(2):
        for package, (first_table, _) in ROOMS.items():
            with engine.begin() as connection:
                migrate(connection, package, first_table)
    assert [off(engine, metadata) for _, metadata in ROOMS.values()] == [[], [], []]


def test_what_is_interrupted_leaves_the_database_as_it_was(engine):
    def interrupted() -> None:
        with engine.begin() as connection:
            migrate(connection, "memory.migrations", "exemplars")
            raise KeyboardInterrupt

    with engine.begin() as connection:
        command.upgrade(module._config(connection, "memory.migrations"), "0001")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM memory_layout")).scalar() == "0001"
        assert "schema_number" in {column["name"] for column in inspect(connection).get_columns("revision")}


@pytest.mark.parametrize("package", ROOMS)
def test_a_layout_of_a_newer_version_is_refused(engine, package):
    first_table, _ = ROOMS[package]
    with engine.begin() as connection:
        migrate(connection, package, first_table)
        connection.execute(text(f"UPDATE {package.split('.')[0]}_layout SET version_num = '9999'"))
    with pytest.raises(UnknownLayoutError, match=r"9999.*newer"), engine.begin() as connection:
        migrate(connection, package, first_table)
