"""How accurate the verdicts are is estimated, and some are audited."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0014", "0013"


def upgrade() -> None:
    """Add the sums of probabilities, the audited verdicts, and the key that draws them."""
    op.create_table(
        "estimate_sums",
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(200), primary_key=True),
        sa.Column("called", sa.String(64), primary_key=True),
        sa.Column("items", sa.BigInteger, nullable=False),
        sa.Column("right", sa.Float, nullable=False),
        sa.Column("variance", sa.Float, nullable=False),
        sa.Column("lowest_chance", sa.Float, nullable=False),
    )
    op.create_table(
        "audits",
        sa.Column("id", sa.String(300), primary_key=True),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("release", sa.String(64), nullable=False),
        sa.Column("source", sa.String(200), nullable=False),
        sa.Column("called", sa.String(64), nullable=False),
        sa.Column("probability", sa.Float, nullable=False),
        sa.Column("chance", sa.Float, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("media_digest", sa.String(64), nullable=False),
        sa.Column("label", sa.String(64)),
        sa.Column("actor", sa.String(200)),
        sa.Column("labelled_ms", sa.BigInteger),
    )
    op.create_index("audits_by_release", "audits", ["release", "day"])
    op.create_index("audits_by_time", "audits", ["at_ms"])
    op.create_table(
        "audit_key",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="only_one_key"), primary_key=True),
        sa.Column("key", sa.LargeBinary, nullable=False),
    )
