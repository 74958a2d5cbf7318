"""The SQL table of the ledger, the same on SQLite and PostgreSQL."""

from sqlalchemy import (
    DDL,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    event,
)

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
