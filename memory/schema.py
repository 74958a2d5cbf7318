"""The memory's tables, in SQL that SQLite and PostgreSQL both take. Changes are in migrations/."""

import hashlib
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

MAX_SOURCE_CHARS = 1024
"""Of a source's name, as of every attribute of a CloudEvent."""

SOURCE_START = 200
"""Characters of a source's name by which it is found."""


def digest_of_source(source: str) -> str:
    """Return the key of a source, SHA-256 of its name: PostgreSQL takes no key as long as a name may be."""
    return hashlib.sha256(source.encode()).hexdigest()


def _source_digest(context: Any) -> str:
    return digest_of_source(context.get_current_parameters()["source"])


def _source_start(context: Any) -> str:
    source: str = context.get_current_parameters()["source"]
    return source[:SOURCE_START]


revision = Table(
    "revision",
    metadata,
    # One row. Every write adds one to `number` first, so that its row lock puts all writers in a
    # queue on PostgreSQL as BEGIN IMMEDIATE does on SQLite, and readers see cheaply what is new.
    Column("id", Integer, CheckConstraint("id = 1", name="only_one"), primary_key=True),
    Column("number", BigInteger, nullable=False),
)

exemplars = Table(
    "exemplars",
    metadata,
    Column("id", String(300), primary_key=True),
    Column("media_digest", String(64), nullable=False, index=True),
    Column("crops_digest", String(64), index=True),
    Column("crop_count", Integer, nullable=False),
    Column("source", String(MAX_SOURCE_CHARS), nullable=False),
    # What an index has of it: PostgreSQL takes no key as long as a source may be.
    Column("source_start", String(SOURCE_START), default=_source_start),
    Column("group", String(300), nullable=False, index=True),
    Column("shelf", String(20), nullable=False),
    Column("family", String(64)),
    Column("split", String(20)),
    Column("release", String(64)),
    Column("unknown_score", Float),
    Column("received_ms", BigInteger, nullable=False),
    Column("features", LargeBinary, nullable=False),  # float32 little-endian, raw
    Column("feature_version", String(40), nullable=False),
    Column("embedding", LargeBinary),  # float32 little-endian, of `release`'s network
    Column("verdict", Text),
    Column("declares", String(20)),  # generated or edited_with_ai; NULL of media that declares neither
    Column("generator", String(200)),
    Column("signer", String(200)),  # a trusted one
    Column("missed", Boolean),  # of declared media: whether its pixels were called real
    Column("picture_hashes", LargeBinary),  # as ingest.records.Decoded has them; NULL where there are none
    Column(
        "revision", BigInteger, nullable=False, index=True
    ),  # of the write that brought the features or dropped it
    # With the id, so that what waits is read from the index alone.
    Index("by_shelf", "shelf", "family", "id"),
    Index("by_source", "source_start", "shelf"),
    Index("by_declaration", "declares", "shelf"),
)

labels = Table(
    "labels",
    metadata,
    # Only ever appended to: an undo is a row of its own.
    Column("id", Integer, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("what", String(64)),  # a family, real or ignore; NULL in an undo
    Column("undoes", Integer, ForeignKey("labels.id"), unique=True),
    Column("looked_at", Integer),  # of a cluster's members, how many were shown; NULL where nobody said
)

labelled = Table(
    "labelled",
    metadata,
    Column("label", Integer, ForeignKey("labels.id"), primary_key=True),
    Column("exemplar", String(300), ForeignKey("exemplars.id"), primary_key=True, index=True),
    # What the undo brings back.
    Column("shelf_before", String(20), nullable=False),
    Column("family_before", String(64)),
    Column("split_before", String(20)),
)

acts = Table(
    "acts",
    metadata,
    # What people did here, for deploy's record. Only ever appended to.
    Column("id", Integer, primary_key=True),
    Column("uid", String(32), nullable=False, unique=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(40), nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", Text, nullable=False),  # JSON
)

offsets = Table(
    "offsets",
    metadata,
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("topic_id", String(36)),  # the broker's; another one is another topic of the same name
)

clusters = Table(
    "clusters",
    metadata,
    # What a person was shown under a cluster's name, so that a label means exactly that.
    Column("id", String(20), primary_key=True),
    Column("shown_ms", BigInteger, nullable=False),  # when it was last known to be in the list
    Column("members", Text, nullable=False),  # JSON list of exemplar ids, nearest to the medoid first
    Column("place", Integer),  # in the list, from 0; NULL when it is there no more
    Column("resembles", String(64)),
    Column("spread", Float),
    Column("unclustered", Boolean),
    Column("alarm", Integer),  # whose suspects these are; such a cluster is never computed anew
    Column("edit", Integer),  # which of `edits` made it; never computed anew, but new items may join
)

edits = Table(
    "edits",
    metadata,
    # Only ever appended to: an undo is a row of its own.
    Column("id", Integer, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("what", String(20)),  # split or merge; NULL in an undo
    Column("cluster", String(20), nullable=False),  # that was made, or in an undo is no more
    Column("taken_from", Text, nullable=False),  # JSON list of the clusters whose members these were
    Column("items", Integer, nullable=False),
    Column("undoes", Integer, ForeignKey("edits.id"), unique=True),
)

clustering = Table(
    "clustering",
    metadata,
    # One row, of the list that `clusters` holds: the revision that it was computed at, and a digest of
    # all that it follows from.
    Column("id", Integer, CheckConstraint("id = 1", name="only_one_list"), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("computed_ms", BigInteger, nullable=False),
    Column("inputs", String(64), nullable=False),
)

watched = Table(
    "watched",
    metadata,
    # A source whose items are called real, by one release: its test, and what it saw last. The number is its
    # test's among those of the release that have bet, which says its share of the budget; 0 while it gathers.
    Column("release", String(64), primary_key=True),
    Column("source_digest", String(64), primary_key=True, index=True, default=_source_digest),
    Column("source", String(MAX_SOURCE_CHARS), nullable=False),
    Column("number", Integer, nullable=False),
    Column("test", LargeBinary, nullable=False),  # memory.shift.shift_test.ShiftTest, as safetensors
    Column("seen", Text, nullable=False),  # JSON list of the newest items, oldest first
    Column("seen_ms", BigInteger, nullable=False, index=True),
    Column("new_ms", BigInteger, nullable=False, server_default="0"),  # since when; 0: others knew the source
)

watched_releases = Table(
    "watched_releases",
    metadata,
    Column("release", String(64), primary_key=True),
    # How many have bet, those that are no more among them: tests of shift, and of drift.
    Column("tests", Integer, nullable=False, default=0),
    Column("drift_tests", Integer, nullable=False, default=0, server_default="0"),
)

drift_watched = Table(
    "drift_watched",
    metadata,
    # A source whose verdicts, of any label, are watched for drift. The empty source: all of the release.
    Column("release", String(64), primary_key=True),
    Column("source_digest", String(64), primary_key=True, index=True, default=_source_digest),
    Column("source", String(MAX_SOURCE_CHARS), nullable=False),
    Column("number", Integer, nullable=False),  # among the release's tests of drift that have bet; or 0
    Column("test", LargeBinary, nullable=False),  # memory.shift.drift.DriftTest, as safetensors
    Column("seen_ms", BigInteger, nullable=False, index=True),
    Column("new_ms", BigInteger, nullable=False, server_default="0"),
)

drift_alarms = Table(
    "drift_alarms",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("found", Text, nullable=False),  # JSON: memory.records.Drift
    Column("announced", Boolean, nullable=False),
)

blocked = Table(
    "blocked",
    metadata,
    # Sources that are no longer remembered, by `digest_of_source`.
    Column("digest", String(64), primary_key=True),
    Column("source", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(200), nullable=False),
)

alarms = Table(
    "alarms",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("raised", Text, nullable=False),  # JSON of what the test found: memory.records.Raised
    Column("suspects", Text, nullable=False),  # JSON list: the items that are to be looked at
    Column("others", Text, nullable=False),  # JSON list: items of the source from before it began
    Column("evidence", Text),  # JSON of the event: memory.records.ShiftAlarm; NULL until they are shelved
    Column("announced", Boolean, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    # Where each lies in the topic of verdicts, as far as the topic's retention keeps it.
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("item_partition", Integer, nullable=False),  # in the media topic, as its id has it
    Column("item_offset", BigInteger, nullable=False),
    Column("release", String(12), nullable=False),  # as detector.release.artifact.version_of has it
    Column("at_ms", BigInteger, nullable=False),
    Column("label", String(20), nullable=False),
    Column("source", String(MAX_SOURCE_CHARS), nullable=False),
    Column("family", String(64)),  # of a fake
    Column("declared", String(20)),  # of media that declares generation: its label by pixels; else NULL
    Index("verdicts_by_item", "item_partition", "item_offset"),
    Index("verdicts_by_time", "at_ms"),
    Index("verdicts_by_release", "release", "at_ms", "label"),  # all that is counted lies in the index
)

estimate_sums = Table(
    "estimate_sums",
    metadata,
    # What verdicts' probabilities p to be right sum to; memory.estimate.sums. Old days leave.
    Column("day", Integer, primary_key=True, autoincrement=False),  # since 1970, UTC
    Column("release", String(64), primary_key=True),
    Column("source", String(SOURCE_START), primary_key=True),  # its beginning; empty: of too many a day
    Column("called", String(64), primary_key=True),  # real, unknown, or a family
    Column("items", BigInteger, nullable=False),
    Column("right", Float, nullable=False),  # sum of p
    Column("variance", Float, nullable=False),  # sum of p (1 - p)
    Column("lowest_chance", Float, nullable=False),  # of an audit; 0 where there was none
)

audits = Table(
    "audits",
    metadata,
    # Verdicts that were drawn for an audit, and what a person then said.
    Column("id", String(300), primary_key=True),
    Column("day", Integer, nullable=False),
    Column("release", String(64), nullable=False),
    Column("source", String(SOURCE_START), nullable=False),
    Column("called", String(64), nullable=False),
    Column("probability", Float, nullable=False),  # to be right
    Column("chance", Float, nullable=False),  # with which it was drawn
    Column("at_ms", BigInteger, nullable=False),
    Column("media_digest", String(64), nullable=False),
    Column("label", String(64)),  # real, a family, or cannot-say; NULL while it waits
    Column("actor", String(200)),
    Column("labelled_ms", BigInteger),  # when it was first labelled
    Index("audits_by_release", "release", "day"),
    Index("audits_by_time", "at_ms"),
)

audit_key = Table(
    "audit_key",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="only_one_key"), primary_key=True),
    Column("key", LargeBinary, nullable=False),
)
