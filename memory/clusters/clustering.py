"""The list of clusters is kept up to date in the memory's own process, and only read everywhere else.

New items that are like a cluster that a person made join it.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, insert, select, update

from memory import metrics
from memory.clusters.clusters import Cluster, cluster, useful
from memory.clusters.joining import assign_to_parts
from memory.clusters.views import all_clusters, owners, upsert_cluster, waiting
from memory.features import Scaling
from memory.rows import Features, now_ms, rows_among, select_features, suspects_of_alarms
from memory.schema import clustering, clusters, edits, exemplars
from memory.settings import MemorySettings
from memory.store import Store, current_revision

_FEWEST = 5
"""A smaller cluster says too little of what is like it."""
_MOST = 300
"""Of each cluster and class, so many rows teach."""


@dataclass(frozen=True)
class Newcomers:
    """Clusters that people made, the computed ones that rival them, and the items that came later.

    made are members by the name of the cluster; rivals are members of the others; later are the ids that came
    after a cluster was made, by its name.
    """

    made: Mapping[str, Features]
    rivals: Sequence[Features]
    later: Mapping[str, frozenset[str]]


def newcomers(connection: Connection, version: str, waiting: Sequence[str]) -> Newcomers:
    """Read the input of `joined_since`, with features of one version. waiting: ids in no such cluster."""
    listed = all_clusters(connection)
    own = {cluster.edit: cluster for cluster in listed if cluster.edit is not None}
    if not own or not waiting:
        return Newcomers({}, [], {})
    query = select(exemplars.c.id, exemplars.c.received_ms)
    came = dict(rows_among(connection, query, exemplars.c.id, waiting))
    made, later = {}, {}
    for number, at_ms in connection.execute(select(edits.c.id, edits.c.at_ms).where(edits.c.id.in_(own))):
        after = frozenset(i for i, ms in came.items() if ms > at_ms)
        teaching = _some(connection, version, own[number].members)
        if after and len(teaching.ids) >= _FEWEST:
            made[own[number].id], later[own[number].id] = teaching, after
    new = frozenset[str]().union(*later.values())
    others = [c.members for c in listed if c.edit is None and c.alarm is None and not c.unclustered]
    rivals = [_some(connection, version, [m for m in members if m not in new]) for members in others]
    return Newcomers(made, [r for r in rivals if len(r.ids) >= _FEWEST] if made else [], later)


def joined_since(
    newcomers: Newcomers, unknown: Features, known: NDArray[np.float32], classes: Sequence[str]
) -> dict[str, str]:
    """Return the name of the cluster that a person made for each new item that joins one.

    known is float32 (m, F), raw features of labelled items of these classes. Shrunk linear discriminants say
    whether an item rather belongs to such a cluster than to a class or a computed cluster; it joins where it
    is no further from the nearest members than 95 % of them are from theirs. What was there when the cluster
    was made never joins: a person left it out.
    """
    new = frozenset[str]().union(*newcomers.later.values())
    rows = [i for i, name in enumerate(unknown.ids) if name in new]
    if not rows:
        return {}
    labels = np.array(classes, str)
    others = [known[labels == name] for name in np.unique(labels)]
    parts = [*(m.matrix for m in newcomers.made.values()), *(r.matrix for r in newcomers.rivals), *others]
    scaling = Scaling.fit(known if len(known) else np.concatenate(parts))
    ends = np.cumsum([len(part) for part in parts])
    z = scaling.apply(np.concatenate([*parts, unknown.matrix[rows]]))
    which = assign_to_parts(z, np.split(np.arange(ends[-1]), ends[:-1]), np.arange(ends[-1], len(z)))
    names = list(newcomers.made)
    return {
        unknown.ids[row]: names[part]
        for row, part in zip(rows, which, strict=True)
        if 0 <= part < len(names) and unknown.ids[row] in newcomers.later[names[part]]
    }


def _some(connection: Connection, version: str, members: Sequence[str]) -> Features:
    chosen = list(members[:: -(-len(members) // _MOST)]) if members else []
    query = select(exemplars.c.id).where(exemplars.c.feature_version == version)
    having = sorted(row.id for row in rows_among(connection, query, exemplars.c.id, chosen))
    return select_features(connection, version, having)


KEPT_MS = 24 * 3600 * 1000
"""A cluster can be looked at and labelled as long as it is in the list, and for this long after."""

_REST = 2
"""Seconds of rest for each second of processor time: all computing takes a third of a core at most.
Counted by the wall clock, a busy host would make a person wait for minutes."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Inputs:
    """The input of a list of clusters: unknowns with their sources, labelled items with their classes."""

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
        fresh = cluster(
            unknown.ids,
            unknown.matrix,
            known.matrix,
            classes,
            inputs.min_items,
            settings.max_clustered,
            list(inputs.waiting.values()),
        )
    with store.write() as connection:
        _put_on_record(connection, fresh, joined, revision, inputs.digest)
    return revision


def _inputs(connection: Connection, settings: MemorySettings) -> _Inputs:
    newest_first = exemplars.c.revision.desc(), exemplars.c.id
    version = select(exemplars.c.feature_version).where(exemplars.c.shelf == "unknown")
    newest: str = connection.scalar(version.order_by(*newest_first).limit(1)) or ""
    waiting = select(exemplars.c.id, exemplars.c.source).where(
        exemplars.c.feature_version == newest, exemplars.c.shelf == "unknown"
    )
    taught = select(exemplars.c.id, exemplars.c.family).where(
        exemplars.c.feature_version == newest, exemplars.c.family.is_not(None)
    )
    known = connection.execute(taught.order_by(*newest_first)).all()
    reserved = suspects_of_alarms(connection).union(owners(connection))
    return _Inputs(
        version=newest,
        waiting={i: of for i, of in connection.execute(waiting.order_by(*newest_first)) if i not in reserved},
        taught=[row.id for row in known],
        classes=[row.family for row in known],
        min_items=settings.min_cluster_items,
    )


def _put_on_record(
    connection: Connection, fresh: Sequence[Cluster], joined: Mapping[str, str], revision: int, inputs: str
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
    for place, part in enumerate(fresh):
        values = {"resembles": part.resembles, "spread": part.spread, "unclustered": part.unclustered}
        upsert_cluster(connection, part.members, shown_ms=now, place=place, **values)
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
