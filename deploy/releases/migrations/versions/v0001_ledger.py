"""The ledger's table as it was before there were revisions."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    """Make the ledger, and let the database itself refuse to change or to delete a row of it."""
    op.create_table(
        "deploy_ledger",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("evaluation_digest", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("candidate", sa.Text),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER deploy_ledger_no_{verb.lower()} BEFORE {verb} ON deploy_ledger "
                "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
            )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION deploy_ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
    )
    op.execute(
        "CREATE TRIGGER deploy_ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON deploy_ledger "
        "FOR EACH STATEMENT EXECUTE FUNCTION deploy_ledger_append_only()"
    )
