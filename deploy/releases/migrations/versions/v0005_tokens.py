"""Tokens of people and machines, and sessions of browsers."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"


def upgrade() -> None:
    """Make both tables, empty: until a person has a token, a stack on loopback asks nobody who they are."""
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
        "deploy_sessions",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("begun_at", sa.DateTime, nullable=False),
        sa.Column("seen_at", sa.DateTime, nullable=False),
    )
