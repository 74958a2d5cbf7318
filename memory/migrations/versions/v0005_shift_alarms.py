"""Sources are watched for shifts of what is called real: their tests, and the alarms that these raise."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"


def upgrade() -> None:
    """Add the tables, and to a cluster the alarm whose suspects it holds."""
    op.create_table(
        "watched",
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(1000), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("test", sa.LargeBinary, nullable=False),
        sa.Column("seen", sa.Text, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "watched_releases",
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("tests", sa.Integer, nullable=False),
    )
    op.create_table(
        "alarms",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("raised", sa.Text, nullable=False),
        sa.Column("suspects", sa.Text, nullable=False),
        sa.Column("others", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text),
        sa.Column("announced", sa.Boolean, nullable=False),
    )
    op.add_column("clusters", sa.Column("alarm", sa.Integer))
