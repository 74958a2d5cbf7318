"""Where each verdict lies in its topic, so that one is found by its item, and a release's newest are."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0007", "0006"


def upgrade() -> None:
    """Add the table; verdicts that were watched before are not in it."""
    op.create_table(
        "verdicts",
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("item_partition", sa.Integer, nullable=False),
        sa.Column("item_offset", sa.BigInteger, nullable=False),
        sa.Column("release", sa.String(12), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("label", sa.String(20), nullable=False),
        sa.Column("source", sa.String(1000), nullable=False),
    )
    op.create_index("verdicts_by_item", "verdicts", ["item_partition", "item_offset"])
    op.create_index("verdicts_by_release", "verdicts", ["release", "at_ms", "label"])
