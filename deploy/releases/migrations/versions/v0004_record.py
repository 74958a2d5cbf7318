"""One record of every act begins, with the ledger's moves so far."""

import json

import sqlalchemy as sa
from alembic import op

from deploy.record.chain import Head, link_rows

revision, down_revision = "0004", "0003"

_REFUSAL = "'the record is append-only'"


def upgrade() -> None:
    """Make the table, closed to changes as the ledger's is, and put the ledger's moves on it."""
    record = op.create_table(
        "deploy_record",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(300), nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("origin", sa.String(32), unique=True),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    for column in ("actor", "action"):
        op.create_index(f"deploy_record_by_{column}", "deploy_record", [column, "sequence"])
    bind = op.get_bind()
    database_id = bind.execute(sa.text("SELECT id FROM deploy_ledger_identity")).scalar_one()
    moves = bind.execute(sa.text("SELECT * FROM deploy_ledger ORDER BY sequence")).mappings()
    op.bulk_insert(record, link_rows(Head(0, database_id), (_act(dict(move)) for move in moves)))
    if bind.dialect.name == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, {_REFUSAL}); END"
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER deploy_record_no_{verb.lower()} BEFORE {verb} ON deploy_record {refuse}"
            )
        # REPLACE deletes the row in its way, and by default fires no trigger for that.
        following = "NEW.sequence IS (SELECT coalesce(max(sequence), 0) + 1 FROM deploy_record)"
        op.execute(
            "CREATE TRIGGER deploy_record_no_replace BEFORE INSERT ON deploy_record "
            f"WHEN NOT ({following}) {refuse}"
        )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION deploy_record_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION {_REFUSAL}; END $$"
    )
    op.execute(
        "CREATE TRIGGER deploy_record_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON deploy_record "
        "FOR EACH STATEMENT EXECUTE FUNCTION deploy_record_append_only()"
    )


def _act(move: dict[str, object]) -> dict[str, object]:
    accepted = move["accepted"]
    details = {
        "ledger": move["sequence"],
        "ledger_hash": move["hash"],
        "reason": move["reason"],
        "accepted": None if accepted is None else json.loads(str(accepted)),
    }
    return {
        "at": move["at"],
        "actor": move["actor"],
        "action": move["action"],
        "subject": move["digest"],
        "details": json.dumps({k: v for k, v in details.items() if v is not None}, sort_keys=True),
        "origin": None,
    }
