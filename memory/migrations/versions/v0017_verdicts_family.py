"""A verdict's place says its family: lists of verdicts are filtered by it."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0017", "0016"


def upgrade() -> None:
    """Add the column; verdicts that lie there already have none."""
    op.add_column("verdicts", sa.Column("family", sa.String(64)))
