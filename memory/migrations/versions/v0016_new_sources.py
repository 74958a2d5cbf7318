"""A watched source says since when it was new: new ones are counted by the hour."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0016", "0015"


def upgrade() -> None:
    """Add the column: nothing that is watched is new. A source is found whatever its release."""
    for table in ("watched", "drift_watched"):
        op.add_column(table, sa.Column("new_ms", sa.BigInteger, nullable=False, server_default="0"))
        op.create_index(f"ix_{table}_source_digest", table, ["source_digest"])
