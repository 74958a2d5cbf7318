"""The SQL table of the ledger, the same on SQLite and PostgreSQL."""

from pathlib import Path
from typing import Any

from sqlalchemy import (
    DDL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
)
from sqlalchemy.engine import make_url

metadata = MetaData()
ledger = Table(
    "deploy_ledger",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("evaluation_digest", String(64), nullable=False),
    Column("reason", Text),
    Column("candidate", Text),
)

# Append-only is held by the database as well, so that a slip of the hand in a SQL shell fails too.
for _verb in ("UPDATE", "DELETE"):
    event.listen(
        ledger,
        "after_create",
        DDL(  # type: ignore[no-untyped-call]
            f"CREATE TRIGGER deploy_ledger_no_{_verb.lower()} BEFORE {_verb} ON deploy_ledger "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        ).execute_if(dialect="sqlite"),
    )
for _statement in (
    "CREATE OR REPLACE FUNCTION deploy_ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$",
    "CREATE TRIGGER deploy_ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON deploy_ledger "
    "FOR EACH STATEMENT EXECUTE FUNCTION deploy_ledger_append_only()",
):
    event.listen(
        ledger,
        "after_create",
        DDL(_statement).execute_if(dialect="postgresql"),  # type: ignore[no-untyped-call]
    )


def open_engine(database_url: str) -> Engine:
    """Return an engine for a SQLAlchemy URL; SQLite's files are made, durable and locked to one writer.

    Raises SQLAlchemyError, OSError, ImportError (the URL's driver is not installed).
    """
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    if url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def _durable(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=10000")

    @event.listens_for(engine, "begin")
    def _lock_before_reading(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
