"""An exemplar keeps the perceptual hashes of what it shows, so that a copy of it joins its group."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    """Give exemplars the column; null in what was written before, whose pictures are no longer at hand."""
    op.add_column("exemplars", sa.Column("picture_hashes", sa.LargeBinary))
