"""The layout has its place in Alembic's table; the number beside the count of writes says it twice."""

from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    """Drop the number."""
    op.drop_column("revision", "schema_number")
