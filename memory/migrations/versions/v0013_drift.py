"""Verdicts of any label are watched for drift: tests, alarms, and how many tests of a release have bet."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0013", "0012"


def upgrade() -> None:
    """Add the tables, and to a release the count of its tests of drift."""
    op.create_table(
        "drift_watched",
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(1000), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("test", sa.LargeBinary, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "drift_alarms",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("found", sa.Text, nullable=False),
        sa.Column("announced", sa.Boolean, nullable=False),
    )
    op.add_column(
        "watched_releases", sa.Column("drift_tests", sa.Integer, nullable=False, server_default="0")
    )
