"""Revisions lead from an empty database, and from one before there were any, to what the code reads."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect, select, sql, text
from sqlalchemy.exc import DBAPIError

import deploy.access.schema
import deploy.releases.ledger
import memory.schema
import updater.schema
from deploy.local.processes import free_port
from deploy.releases.ledger import Ledger
from memory import database as module
from memory.acts import acts_after
from memory.database import UnknownLayoutError, migrate, open_engine
from memory.rows import stream_features
from memory.schema import digest_of_source
from memory.store import Store, StoreUnavailableError, load_offsets

ROOMS = {
    "memory.migrations": ("exemplars", memory.schema.metadata),
    "updater.migrations": ("updater_runs", updater.schema.metadata),
    "deploy.releases.migrations": ("deploy_ledger", deploy.access.schema.tokens.metadata),
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


def test_a_run_s_number_never_comes_back_when_the_state_s_column_is_widened(engine):
    """Artifacts and the ledger name runs by it. The newest run's row is gone before the revision."""
    insert = BEFORE_REVISIONS["updater.migrations"]
    with engine.begin() as connection:
        command.upgrade(module._config(connection, "updater.migrations"), "0001")
        for number in range(3):
            connection.execute(text(insert.replace("manual/1", f"manual/{number}")))
        connection.execute(text("DELETE FROM updater_runs WHERE id = 3"))
    with engine.begin() as connection:
        migrate(connection, "updater.migrations", "updater_runs")
        connection.execute(text(insert.replace("'done'", "'proposed with findings'").replace("/1", "/4")))
        assert connection.execute(text("SELECT max(id) FROM updater_runs")).scalar() == 4
        indexes = {
            index["name"]: index["unique"] for index in inspect(connection).get_indexes("updater_runs")
        }
    assert indexes["updater_runs_one_running"]


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
def test_four_processes_that_open_an_empty_database_at_once_lose_no_update(postgresql_url: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", OPENS, postgresql_url]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    store = Store(postgresql_url)
    with store.read() as connection:
        assert load_offsets(connection) == {("t", 0): 100}
    store.close()


@pytest.mark.system
def test_the_ledger_takes_no_change_from_a_sql_shell(postgresql_url: str) -> None:
    Ledger(postgresql_url).close()
    engine = create_engine(postgresql_url)
    for statement in ("UPDATE deploy_ledger SET actor = 'eve'", "DELETE FROM deploy_ledger"):
        with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.system
def test_a_server_that_is_away_is_a_retryable_fault_in_one_line_without_the_password() -> None:
    with pytest.raises(StoreUnavailableError, match="refused") as caught:
        Store(f"postgresql://forgewatch:s3cret@127.0.0.1:{free_port()}/none")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_exemplars_of_before_pictures_were_hashed_have_none(engine):
    row = {
        "id": "old",
        "media_digest": "d",
        "crop_count": 1,
        "source": "s",
        "group": "old",
        "shelf": "unknown",
        "received_ms": 1,
        "features": bytes(8),
        "feature_version": "1",
        "revision": 1,
    }
    names, values = ", ".join(f'"{name}"' for name in row), ", ".join(f":{name}" for name in row)
    with engine.begin() as connection:
        command.upgrade(module._config(connection, "memory.migrations"), "0005")
        connection.execute(text(f"INSERT INTO exemplars ({names}) VALUES ({values})"), row)
        migrate(connection, "memory.migrations", "exemplars")
        (block,) = stream_features(connection, "1")
    assert (block.ids, block.picture_hashes) == (("old",), (b"",))


def test_labels_of_before_there_were_acts_are_acts_now(engine):
    columns = "id, at_ms, actor, what, undoes"
    with engine.begin() as connection:
        command.upgrade(module._config(connection, "memory.migrations"), "0006")
        for values in ("1, 1000, 'ada', 'gan', NULL", "2, 2000, 'bo', NULL, 1"):
            connection.execute(text(f"INSERT INTO labels ({columns}) VALUES ({values})"))
        migrate(connection, "memory.migrations", "exemplars")
        first, undone = acts_after(connection, 0, 10)
    assert (first.actor, first.action, first.subject, first.details["what"]) == (
        "ada",
        "label",
        "label 1",
        "gan",
    )
    assert (undone.actor, undone.action, undone.subject, undone.details["label"]) == (
        "bo",
        "undo",
        "label 1",
        2,
    )
    assert first.at.timestamp() == 1
    assert first.uid != undone.uid


def test_sources_that_were_watched_by_name_are_watched_on_and_exemplars_keep_their_labels(engine):
    """Tests of shift and drift, and what labels point at, are there as they were; a longer source fits."""
    with engine.begin() as connection:
        command.upgrade(module._config(connection, "memory.migrations"), "0014")
        for release, source in (("a", "door"), ("b", "door"), ("a", "\u4e2d" * 800)):
            values = {"release": release, "source": source, "number": 3, "test": b"t", "seen_ms": 7}
            put(connection, "drift_watched", values)
            put(connection, "watched", values | {"seen": "[]"})
        exemplar = {"id": "old", "media_digest": "d", "crop_count": 1, "source": "door", "group": "old"}
        exemplar |= {"shelf": "unknown", "received_ms": 1, "features": bytes(8), "feature_version": "1"}
        put(connection, "exemplars", exemplar | {"revision": 1, "source_start": "door"})
        put(connection, "labels", {"id": 1, "at_ms": 1000, "actor": "ada", "what": "gan"})
        put(connection, "labelled", {"label": 1, "exemplar": "old", "shelf_before": "unknown"})
    with engine.begin() as connection:
        migrate(connection, "memory.migrations", "exemplars")
        for table in (memory.schema.watched, memory.schema.drift_watched):
            rows = connection.execute(select(table)).mappings().all()
            assert sorted(
                (row["release"], row["source"][:4], row["number"], row["test"]) for row in rows
            ) == [("a", "door", 3, b"t"), ("a", "\u4e2d" * 4, 3, b"t"), ("b", "door", 3, b"t")]
            assert all(row["source_digest"] == digest_of_source(row["source"]) for row in rows)
        assert connection.scalar(select(memory.schema.exemplars.c.source)) == "door"
        assert connection.scalar(select(memory.schema.labelled.c.exemplar)) == "old"


def put(connection: Connection, table: str, values: dict[str, object]) -> None:
    connection.execute(sql.table(table, *map(sql.column, values)).insert().values(**values))
