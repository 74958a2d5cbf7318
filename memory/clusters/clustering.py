"""The list of clusters is kept up to date in the memory's own process, and only read everywhere else."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event

import structlog
from sqlalchemy import Connection, delete, insert, select, update

from memory import metrics
from memory.clusters.clusters import Cluster, cluster, useful
from memory.clusters.newcomers import joined_since, newcomers
from memory.clusters.shown import owners, upsert_cluster, waiting
from memory.rows import now_ms, select_features, suspects_of_alarms
from memory.schema import clustering, clusters, exemplars
from memory.settings import MemorySettings
from memory.store import Store, current_revision

KEPT_MS = 24 * 3600 * 1000
"""A cluster can be looked at and labelled as long as it is in the list, and for this long after."""

_REST = 2
"""Seconds of rest for each second of processor time: all computing takes a third of a core at most.
Counted by the wall clock, a busy host would make a person wait for minutes."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Inputs:
    """What a list follows from: unknowns with their sources, labelled items with their classes."""

    version: str
    waiting: Mapping[str, str]
    taught: Sequence[str]
    classes: Sequence[str]
    min_items: int

    @property
    def digest(self) -> str:
        parts = [self.version, [*self.waiting], self.taught, self.classes, self.min_items]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def keep_clustered(settings: MemorySettings, stop: Event) -> None:
    """Renew the list whenever something changed, until stop is set; a fault costs only a round."""
    store: Store | None = None
    seen, pause_s = -1, 0.0
    while not stop.wait(pause_s):
        began = time.thread_time()
        try:
            store = store or Store(settings.database_url)
            seen = renew(store, settings, seen)
        except Exception as error:  # nobody watches a thread: whatever it is, the next round tries again
            metrics.CLUSTERING_FAILURES.inc()
            log.warning("clusters not computed, done again", error=f"{type(error).__name__}: {error}")
        pause_s = max(settings.clusters_interval_s, _REST * (time.thread_time() - began))
    if store is not None:
        store.close()


def renew(store: Store, settings: MemorySettings, seen: int = -1) -> int:
    """Cluster the unknowns and put the list on record, unless it follows from the same items already.

    seen is what an earlier call returned: the store's revision that it looked at. Takes seconds for some
    hundred items and a minute for a hundred thousand, outside of any transaction. Raises
    StoreUnavailableError.
    """
    with store.read() as connection:
        revision = current_revision(connection)
        if revision == seen:
            return seen
        inputs = _inputs(connection, settings)
        if inputs.digest == connection.scalar(select(clustering.c.inputs)):
            return revision
        unknown = select_features(connection, inputs.version, ids=[*inputs.waiting])
        teaching = useful(inputs.classes)
        known = select_features(connection, inputs.version, ids=[inputs.taught[i] for i in teaching])
        classes = [inputs.classes[i] for i in teaching]
        made = newcomers(connection, inputs.version, [*inputs.waiting])
    joined = joined_since(made, unknown, known.matrix, classes)
    if joined:
        left = [i for i, name in enumerate(unknown.ids) if name not in joined]
        inputs = replace(inputs, waiting={unknown.ids[i]: inputs.waiting[unknown.ids[i]] for i in left})
        unknown = replace(unknown, ids=tuple(inputs.waiting), matrix=unknown.matrix[left])
    with metrics.CLUSTERING_SECONDS.time():
        found = cluster(
            unknown.ids,
            unknown.matrix,
            known.matrix,
            classes,
            inputs.min_items,
            settings.max_clustered,
            list(inputs.waiting.values()),
        )
    with store.write() as connection:
        _put_on_record(connection, found, joined, revision, inputs.digest)
    return revision


def _inputs(connection: Connection, settings: MemorySettings) -> _Inputs:
    newest_first = exemplars.c.revision.desc(), exemplars.c.id
    version = select(exemplars.c.feature_version).where(exemplars.c.shelf == "unknown")
    found: str = connection.scalar(version.order_by(*newest_first).limit(1)) or ""
    waiting = select(exemplars.c.id, exemplars.c.source).where(
        exemplars.c.feature_version == found, exemplars.c.shelf == "unknown"
    )
    taught = select(exemplars.c.id, exemplars.c.family).where(
        exemplars.c.feature_version == found, exemplars.c.family.is_not(None)
    )
    known = connection.execute(taught.order_by(*newest_first)).all()
    shown = suspects_of_alarms(connection).union(owners(connection))
    return _Inputs(
        version=found,
        waiting={i: of for i, of in connection.execute(waiting.order_by(*newest_first)) if i not in shown},
        taught=[row.id for row in known],
        classes=[row.family for row in known],
        min_items=settings.min_cluster_items,
    )


def _put_on_record(
    connection: Connection, found: Sequence[Cluster], joined: Mapping[str, str], revision: int, inputs: str
) -> None:
    before = connection.execute(select(clustering)).first()
    if before is not None and before.revision > revision:
        return  # another process of this memory was quicker, and saw more
    now = now_ms()
    listed = clusters.c.place.is_not(None)
    connection.execute(update(clusters).where(listed).values(place=None, shown_ms=now))
    _put_joined(connection, joined, now)
    gone = (clusters.c.shown_ms < now - KEPT_MS) & clusters.c.alarm.is_(None)
    connection.execute(delete(clusters).where(gone))
    for place, part in enumerate(found):
        said = {"resembles": part.resembles, "spread": part.spread, "unclustered": part.unclustered}
        upsert_cluster(connection, part.members, shown_ms=now, place=place, **said)
    row = {"revision": revision, "computed_ms": now, "inputs": inputs}
    if before is None:
        connection.execute(insert(clustering).values(id=1, **row))
    else:
        connection.execute(update(clustering).values(row))


def _put_joined(connection: Connection, joined: Mapping[str, str], now: int) -> None:
    """Add what joined clusters that people made, as far as it waits and no edit took it meanwhile.

    Those of which something waits stay on record.
    """
    waits, owner = waiting(connection), owners(connection)
    for row in connection.execute(select(clusters).where(clusters.c.edit.is_not(None))).all():
        mine = joined.items()
        new = sorted(i for i, name in mine if name == row.id and i in waits and i not in owner)
        members = [*json.loads(row.members), *new]
        if any(member in waits for member in members):
            values = {"shown_ms": now, "members": json.dumps(members)}
            connection.execute(update(clusters).where(clusters.c.id == row.id).values(values))
