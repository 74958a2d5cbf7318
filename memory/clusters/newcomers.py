"""Which new items join a cluster that a person made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from memory.clusters.joining import assign_to_parts
from memory.clusters.shown import shown_all
from memory.features import Scaling
from memory.rows import Features, batches, select_features
from memory.schema import edits, exemplars

_FEWEST = 5
"""A smaller cluster says too little of what is like it."""
_MOST = 300
"""Of each cluster and class, so many rows teach."""


@dataclass(frozen=True)
class Newcomers:
    """Clusters that people made, the computed ones that rival them, and what came after each was made.

    made are members by the name of the cluster; rivals are members of the others; later are the ids that came
    after a cluster was made, by its name.
    """

    made: Mapping[str, Features]
    rivals: Sequence[Features]
    later: Mapping[str, frozenset[str]]


def newcomers(connection: Connection, version: str, waiting: Sequence[str]) -> Newcomers:
    """Read what `joined_since` compares, with features of one version. waiting: ids in no such cluster."""
    listed = shown_all(connection)
    own = {cluster.edit: cluster for cluster in listed if cluster.edit is not None}
    if not own or not waiting:
        return Newcomers({}, [], {})
    came = {}
    for some in batches(waiting):
        query = select(exemplars.c.id, exemplars.c.received_ms).where(exemplars.c.id.in_(some))
        came.update({row.id: row.received_ms for row in connection.execute(query)})
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
    found: Newcomers, unknown: Features, known: NDArray[np.float32], classes: Sequence[str]
) -> dict[str, str]:
    """Return the name of the cluster that a person made for each new item that joins one.

    known is float32 (m, F), raw features of labelled items of these classes. Shrunk linear discriminants say
    whether an item rather belongs to such a cluster than to a class or a computed cluster; it joins where it
    is no further from the nearest members than 95 % of them are from theirs. What was there when the cluster
    was made never joins: a person left it out.
    """
    new = frozenset[str]().union(*found.later.values())
    rows = [i for i, name in enumerate(unknown.ids) if name in new]
    if not rows:
        return {}
    labels = np.array(classes, str)
    others = [known[labels == name] for name in np.unique(labels)]
    parts = [*(m.matrix for m in found.made.values()), *(r.matrix for r in found.rivals), *others]
    scaling = Scaling.fit(known if len(known) else np.concatenate(parts))
    ends = np.cumsum([len(part) for part in parts])
    z = scaling.apply(np.concatenate([*parts, unknown.matrix[rows]]))
    which = assign_to_parts(z, np.split(np.arange(ends[-1]), ends[:-1]), np.arange(ends[-1], len(z)))
    names = list(found.made)
    return {
        unknown.ids[row]: names[part]
        for row, part in zip(rows, which, strict=True)
        if 0 <= part < len(names) and unknown.ids[row] in found.later[names[part]]
    }


def _some(connection: Connection, version: str, members: Sequence[str]) -> Features:
    chosen = list(members[:: -(-len(members) // _MOST)]) if members else []
    having: list[str] = []
    for some in batches(chosen):
        query = select(exemplars.c.id).where(exemplars.c.id.in_(some), exemplars.c.feature_version == version)
        having += connection.scalars(query)
    return select_features(connection, version, sorted(having))
