"""The newest verdicts of all are found by time."""

from alembic import op

revision, down_revision = "0010", "0009"


def upgrade() -> None:
    """Add the index. A source has no part in it: PostgreSQL takes no key as long as a source may be."""
    op.create_index("verdicts_by_time", "verdicts", ["at_ms"])
