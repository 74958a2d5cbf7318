"""Deploy's tables as of version 0.1.0: the revisions before it are in this one."""

import secrets

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0008", None


def upgrade() -> None:
    """Make them; the database itself refuses to change or to delete a row of the ledger and the record."""
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
        sa.Column("epoch", sa.BigInteger),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("accepted", sa.Text),
        sa.Column("requested_by", sa.String(200)),
        sa.Column("bound", sa.Text),
        sa.Column("rollout", sa.Text),
    )
    identity = op.create_table("deploy_ledger_identity", sa.Column("id", sa.String(32), primary_key=True))
    op.create_table(
        "deploy_record",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(300), nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("origin", sa.String(32), unique=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Index("deploy_record_by_action", "action", "sequence"),
        sa.Index("deploy_record_by_actor", "actor", "sequence"),
    )
    op.create_table(
        "deploy_sessions",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("begun_at", sa.DateTime, nullable=False),
        sa.Column("seen_at", sa.DateTime, nullable=False),
    )
    op.create_table(
        "deploy_tokens",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("made_at", sa.DateTime, nullable=False),
        sa.Column("made_by", sa.String(200), nullable=False),
        sa.Column("expires_at", sa.DateTime, nullable=False),
        sa.Column("used_at", sa.DateTime),
        sa.Column("revoked_at", sa.DateTime),
        sa.Column("revoked_by", sa.String(200)),
    )
    op.create_table(
        "deploy_webhooks",
        sa.Column("webhook", sa.String(64), primary_key=True),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("taken_at", sa.DateTime),
        sa.Column("error", sa.String(300)),
        sa.Column("holder", sa.String(32)),
        sa.Column("held_until", sa.DateTime),
    )
    op.bulk_insert(identity, [{"id": secrets.token_hex(16)}])
    for table in ("ledger", "record"):
        _close(f"deploy_{table}", f"'the {table} is append-only'")


def _close(table: str, refusal: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, {refusal}); END"
        for verb in ("UPDATE", "DELETE"):
            op.execute(f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {refuse}")
        # REPLACE deletes the row in its way, and by default fires no trigger for that.
        following = f"NEW.sequence IS (SELECT coalesce(max(sequence), 0) + 1 FROM {table})"  # noqa: S608
        op.execute(
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN NOT ({following}) {refuse}"
        )
        return
    op.execute(
        f"CREATE OR REPLACE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION {refusal}; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()"
    )
