"""The tables of the memory as they were before there were revisions."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    """Make exemplars, labels, what was labelled, offsets, clusters and the count of writes."""
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="only_one"), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("schema_number", sa.Integer, nullable=False),
    )
    op.create_table(
        "exemplars",
        sa.Column("id", sa.String(300), primary_key=True),
        sa.Column("media_digest", sa.String(64), nullable=False, index=True),
        sa.Column("crops_digest", sa.String(64), index=True),
        sa.Column("crop_count", sa.Integer, nullable=False),
        sa.Column("source", sa.String(1000), nullable=False),
        sa.Column("group", sa.String(300), nullable=False, index=True),
        sa.Column("shelf", sa.String(20), nullable=False),
        sa.Column("family", sa.String(64)),
        sa.Column("split", sa.String(20)),
        sa.Column("release", sa.String(64)),
        sa.Column("unknown_score", sa.Float),
        sa.Column("received_ms", sa.BigInteger, nullable=False),
        sa.Column("features", sa.LargeBinary, nullable=False),
        sa.Column("feature_version", sa.String(40), nullable=False),
        sa.Column("embedding", sa.LargeBinary),
        sa.Column("verdict", sa.Text),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
    )
    op.create_index("by_shelf", "exemplars", ["shelf", "family"])
    op.create_table(
        "labels",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("what", sa.String(64)),
        sa.Column("undoes", sa.Integer, sa.ForeignKey("labels.id"), unique=True),
    )
    op.create_table(
        "labelled",
        sa.Column("label", sa.Integer, sa.ForeignKey("labels.id"), primary_key=True),
        sa.Column("exemplar", sa.String(300), sa.ForeignKey("exemplars.id"), primary_key=True, index=True),
        sa.Column("shelf_before", sa.String(20), nullable=False),
        sa.Column("family_before", sa.String(64)),
        sa.Column("split_before", sa.String(20)),
    )
    op.create_table(
        "offsets",
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "clusters",
        sa.Column("id", sa.String(20), primary_key=True),
        sa.Column("shown_ms", sa.BigInteger, nullable=False),
        sa.Column("members", sa.Text, nullable=False),
    )
