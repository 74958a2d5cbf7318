"""The memory's tables as of version 0.1.0: the revisions before it are in this one."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0017", None


def upgrade() -> None:
    """Make them, empty."""
    op.create_table(
        "acts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
    )
    op.create_table(
        "alarms",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("raised", sa.Text, nullable=False),
        sa.Column("suspects", sa.Text, nullable=False),
        sa.Column("others", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text),
        sa.Column("announced", sa.Boolean, nullable=False),
    )
    op.create_table(
        "audit_key",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="only_one_key"), primary_key=True),
        sa.Column("key", sa.LargeBinary, nullable=False),
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
        sa.Index("audits_by_release", "release", "day"),
        sa.Index("audits_by_time", "at_ms"),
    )
    op.create_table(
        "blocked",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
    )
    op.create_table(
        "clustering",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="only_one_list"), primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("computed_ms", sa.BigInteger, nullable=False),
        sa.Column("inputs", sa.String(64), nullable=False),
    )
    op.create_table(
        "clusters",
        sa.Column("id", sa.String(20), primary_key=True),
        sa.Column("shown_ms", sa.BigInteger, nullable=False),
        sa.Column("members", sa.Text, nullable=False),
        sa.Column("place", sa.Integer),
        sa.Column("resembles", sa.String(64)),
        sa.Column("spread", sa.Float),
        sa.Column("unclustered", sa.Boolean),
        sa.Column("alarm", sa.Integer),
        sa.Column("edit", sa.Integer),
    )
    op.create_table(
        "drift_alarms",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("found", sa.Text, nullable=False),
        sa.Column("announced", sa.Boolean, nullable=False),
    )
    op.create_table(
        "drift_watched",
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("source_digest", sa.String(64), primary_key=True, index=True),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("test", sa.LargeBinary, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("new_ms", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_table(
        "edits",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("what", sa.String(20)),
        sa.Column("cluster", sa.String(20), nullable=False),
        sa.Column("taken_from", sa.Text, nullable=False),
        sa.Column("items", sa.Integer, nullable=False),
        sa.Column("undoes", sa.Integer, sa.ForeignKey("edits.id"), unique=True),
    )
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
        "exemplars",
        sa.Column("id", sa.String(300), primary_key=True),
        sa.Column("media_digest", sa.String(64), nullable=False, index=True),
        sa.Column("crops_digest", sa.String(64), index=True),
        sa.Column("crop_count", sa.Integer, nullable=False),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("source_start", sa.String(200)),
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
        sa.Column("picture_hashes", sa.LargeBinary),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
        sa.Index("by_shelf", "shelf", "family", "id"),
        sa.Index("by_source", "source_start", "shelf"),
    )
    op.create_table(
        "labels",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("what", sa.String(64)),
        sa.Column("undoes", sa.Integer, sa.ForeignKey("labels.id"), unique=True),
        sa.Column("looked_at", sa.Integer),
    )
    op.create_table(
        "offsets",
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("topic_id", sa.String(36)),
    )
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="only_one"), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "verdicts",
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("item_partition", sa.Integer, nullable=False),
        sa.Column("item_offset", sa.BigInteger, nullable=False),
        sa.Column("release", sa.String(12), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("label", sa.String(20), nullable=False),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("family", sa.String(64)),
        sa.Index("verdicts_by_item", "item_partition", "item_offset"),
        sa.Index("verdicts_by_release", "release", "at_ms", "label"),
        sa.Index("verdicts_by_time", "at_ms"),
    )
    op.create_table(
        "watched",
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("source_digest", sa.String(64), primary_key=True, index=True),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("test", sa.LargeBinary, nullable=False),
        sa.Column("seen", sa.Text, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("new_ms", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_table(
        "watched_releases",
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("tests", sa.Integer, nullable=False),
        sa.Column("drift_tests", sa.Integer, nullable=False, server_default="0"),
    )
    op.create_table(
        "labelled",
        sa.Column("label", sa.Integer, sa.ForeignKey("labels.id"), primary_key=True),
        sa.Column("exemplar", sa.String(300), sa.ForeignKey("exemplars.id"), primary_key=True, index=True),
        sa.Column("shelf_before", sa.String(20), nullable=False),
        sa.Column("family_before", sa.String(64)),
        sa.Column("split_before", sa.String(20)),
    )
