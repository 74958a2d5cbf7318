"""Exemplars are found and counted by their source."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0012", "0011"


def upgrade() -> None:
    """Add the beginning of the source, and its index: PostgreSQL takes no key as long as a name may be."""
    op.add_column("exemplars", sa.Column("source_start", sa.String(200)))
    op.execute("UPDATE exemplars SET source_start = substr(source, 1, 200)")
    op.create_index("by_source", "exemplars", ["source_start", "shelf"])
