"""The clusters are computed in one process and read in another: the list, and what it follows from."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    """Give clusters their place in the list, and the list its row."""
    op.add_column("clusters", sa.Column("place", sa.Integer))
    op.add_column("clusters", sa.Column("resembles", sa.String(64)))
    op.add_column("clusters", sa.Column("spread", sa.Float))
    op.add_column("clusters", sa.Column("unclustered", sa.Boolean))
    op.create_table(
        "clustering",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="only_one_list"), primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("computed_ms", sa.BigInteger, nullable=False),
        sa.Column("inputs", sa.String(64), nullable=False),
    )
