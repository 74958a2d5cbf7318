"""A source leaves the memory: crops, features and verdicts of its items go; labels of people stay on record.

So do its part of the estimate of accuracy, and what was audited of it. Of names that begin alike for
SOURCE_START characters, the estimate knows the beginning alone: they leave together.

A row stays as an empty one on the dropped shelf, so that a label still says what it was about, and a message
that is read again is known. What releases learnt is in their artifacts, and stays there.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, delete, func, select, update

from memory import acts
from memory.clusters.views import all_clusters
from memory.crops.crop_store import CropStore
from memory.retention import delete_unused
from memory.rows import batches, count_by, drop, rows_among
from memory.schema import SOURCE_START, alarms, audits, drift_watched, estimate_sums, exemplars, watched
from memory.schema import acts as acts_table
from memory.sources import block, blocked_among, is_of
from memory.store import Store

PURGE = "purge source"
LABELLED = ("rehearsal", "held-back")
"""Shelves of what updates learn from and are measured on."""


@dataclass(frozen=True)
class Holding:
    """A source's exemplars in the memory by shelf, without those that are empty already."""

    source: str
    shelves: dict[str, int]
    clusters: int
    """that wait and show an item of it"""
    blocked: bool

    @property
    def labelled_count(self) -> int:
        """Exemplars that updates learn from or are measured on."""
        return sum(self.shelves.get(shelf, 0) for shelf in LABELLED)


def holding(connection: Connection, source: str) -> Holding:
    shelves = count_by(connection, exemplars.c.shelf, _of(source))
    ids = set(connection.scalars(select(exemplars.c.id).where(_of(source), exemplars.c.shelf == "unknown")))
    clusters = sum(not ids.isdisjoint(cluster.members) for cluster in all_clusters(connection)) if ids else 0
    return Holding(source, shelves, clusters, bool(blocked_among(connection, [source])))


def begin(connection: Connection, holding: Holding, actor: str, *, blocks: bool) -> None:
    """Put a purge on record, and delete the source's tests, sums and alarms, in the caller's transaction."""
    if blocks:
        block(connection, holding.source, actor)
    acts.append(connection, actor, PURGE, holding.source, {"exemplars": holding.shelves, "blocks": blocks})
    for table in (watched, drift_watched):
        connection.execute(delete(table).where(table.c.source == holding.source))
    if start := holding.source[:SOURCE_START]:  # under none are those of too many sources a day
        for table in (estimate_sums, audits):
            connection.execute(delete(table).where(table.c.source == start))
    for row in connection.execute(select(alarms.c.id, alarms.c.raised, alarms.c.evidence)).all():
        if json.loads(row.raised)["source"] == holding.source:
            here = alarms.c.id == row.id
            if row.evidence is None:  # its suspects would come yet
                connection.execute(delete(alarms).where(here))
            else:
                connection.execute(update(alarms).where(here).values(suspects="[]", others="[]"))


def purge_batch(store: Store, crops: CropStore, source: str, most: int) -> tuple[int, int]:
    """Empty up to `most` rows of a source; return how many, and how many are left.

    Their crops are gone on return, but for those that another source's item shares. Killed anywhere, the next
    call goes on. Raises StoreUnavailableError or CropsUnavailableError.
    """
    with store.read() as connection:
        ids = connection.scalars(select(exemplars.c.id).where(_of(source))).all()
    for some in batches(ids[:most]):
        with store.write() as connection:
            digests = drop(connection, some)
            _empty(connection, some)
        # Rows first: a crash in between leaves crops without a row, which `retention.sweep` finds.
        delete_unused(store, crops, digests)
    return len(ids[:most]), len(ids[most:])


def purged_sources(connection: Connection) -> set[str]:
    return set(connection.scalars(select(acts_table.c.subject).where(acts_table.c.action == PURGE)))


def emptied_among(connection: Connection, ids: Collection[str]) -> int:
    """Return how many of these exemplars are empty."""
    gone = select(exemplars.c.id).where(exemplars.c.shelf == "dropped")
    return sum(1 for _ in rows_among(connection, gone, exemplars.c.id, list(ids)))


def _of(source: str) -> ColumnElement[bool]:
    # An item that only aged out has no crops any more, and its verdict still.
    full = exemplars.c.verdict.is_not(None) | exemplars.c.embedding.is_not(None)
    return is_of(source) & ((exemplars.c.shelf != "dropped") | full)


def _empty(connection: Connection, ids: Sequence[str]) -> None:
    here = exemplars.c.id.in_(ids)
    gone = {"embedding": None, "verdict": None, "picture_hashes": None, "unknown_score": None}
    connection.execute(update(exemplars).where(here).values(gone))
    # As long as they were: whoever reads rows of a version by their ids expects one width.
    lengths = select(func.length(exemplars.c.features)).where(here).distinct()
    for length in connection.scalars(lengths).all():
        same = here & (func.length(exemplars.c.features) == length)
        connection.execute(update(exemplars).where(same).values(features=bytes(length)))
