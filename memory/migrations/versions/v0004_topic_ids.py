"""An offset says of which topic it is, by the broker's id: one made anew under that name counts from 0."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"


def upgrade() -> None:
    """Give each offset the id of its topic; null in what was written before, and by brokers without ids."""
    op.add_column("offsets", sa.Column("topic_id", sa.String(36)))
