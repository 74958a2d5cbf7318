"""Sources that are no longer remembered."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0011", "0010"


def upgrade() -> None:
    """Add the table. Its key is a digest: PostgreSQL takes no key as long as a source may be."""
    op.create_table(
        "blocked",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
    )
