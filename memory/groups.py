"""Groups: items that must stay on one side of the split, since they show nearly the same."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from memory.index.index import Index
from memory.rows import exemplars_of, groups_by_media


def assign_groups(
    connection: Connection,
    index: Index,
    ids: Sequence[str],
    media_digests: Sequence[str],
    features: NDArray[np.float32],
    given: Sequence[str | None],
    near: float,
) -> list[str]:
    """Return the group of each item that is about to be written.

    In this order: the group that it came with (given); that of the same media bytes; that of the
    nearest exemplar, where it is closer than near (in the distance of `Index.search`); its own
    id. features is raw float32 (n, F). The index is brought up to the transaction's rows.
    """
    index.catch_up(connection, features)
    by_media = groups_by_media(connection, media_digests)
    nearest = [matches[0] if matches else None for matches in index.search(features, 1)]
    likes = sorted({m.id for m in nearest if m is not None and m.distance < near})
    group_of = {e.id: e.group for e in exemplars_of(connection, likes)}
    scaled = index.scaled(features)
    groups: list[str] = []
    for i, item in enumerate(ids):
        match = nearest[i]
        named, same = given[i], by_media.get(media_digests[i])
        if named is not None:
            group = named
        elif same is not None:
            group = same
        else:
            # The items of one batch are not in the index yet: they are compared among themselves.
            among = np.linalg.norm(scaled[:i] - scaled[i], axis=1)
            likest = int(among.argmin()) if i else -1
            old = match.distance if match is not None else np.inf
            if i and among[likest] < min(near, old):
                group = groups[likest]
            elif match is not None and old < near:
                group = group_of[match.id]
            else:
                group = item
        by_media.setdefault(media_digests[i], group)
        groups.append(group)
    return groups
