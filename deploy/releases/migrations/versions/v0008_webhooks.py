"""A webhook's cursor: up to which act of the record it was told, and which server tells it."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0008", "0007"


def upgrade() -> None:
    """Make the table, empty: a webhook is told of what comes after it was set."""
    op.create_table(
        "deploy_webhooks",
        sa.Column("webhook", sa.String(64), primary_key=True),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("taken_at", sa.DateTime),
        sa.Column("error", sa.String(300)),
        sa.Column("holder", sa.String(32)),
        sa.Column("held_until", sa.DateTime),
    )
