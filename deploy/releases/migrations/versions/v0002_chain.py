"""The ledger gets its id, its epoch and a hash chain, and is closed to REPLACE, which no trigger saw."""

import secrets

import sqlalchemy as sa
from alembic import op

from deploy.record.chain import link

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    """Make the table anew, with the hashes of the rows that it had."""
    bind = op.get_bind()
    rows = [dict(row) for row in bind.execute(sa.text("SELECT * FROM deploy_ledger ORDER BY 1")).mappings()]
    ledger_id = secrets.token_hex(16)
    before = ledger_id
    for row in rows:
        row["hash"] = before = link(before, row)
    op.drop_table("deploy_ledger")
    ledger = op.create_table(
        "deploy_ledger",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("evaluation_digest", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("candidate", sa.Text),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    identity = op.create_table("deploy_ledger_identity", sa.Column("id", sa.String(32), primary_key=True))
    op.bulk_insert(identity, [{"id": ledger_id}])
    op.bulk_insert(ledger, rows)
    if bind.dialect.name == "sqlite":
        refuse = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER deploy_ledger_no_{verb.lower()} BEFORE {verb} ON deploy_ledger {refuse}"
            )
        # REPLACE deletes the row in its way, and by default fires no trigger for that.
        following = "NEW.sequence IS (SELECT coalesce(max(sequence), 0) + 1 FROM deploy_ledger)"
        op.execute(
            "CREATE TRIGGER deploy_ledger_no_replace BEFORE INSERT ON deploy_ledger "
            f"WHEN NOT ({following}) {refuse}"
        )
        return
    op.execute(
        "CREATE TRIGGER deploy_ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON deploy_ledger "
        "FOR EACH STATEMENT EXECUTE FUNCTION deploy_ledger_append_only()"
    )
