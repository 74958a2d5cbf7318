"""Exemplars are found and counted by their source."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0012", "0011"


def upgrade() -> None:
    """Add the index, over the beginning of the name: PostgreSQL takes no key as long as a name may be."""
    op.create_index("exemplars_by_source", "exemplars", [sa.text("substr(source, 1, 200)"), "shelf"])
