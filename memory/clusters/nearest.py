"""The labelled exemplars that a cluster is nearest to."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from memory.index.shared_index import SharedIndex
from memory.schema import exemplars
from memory.store import Store

_TRIED = 100


@dataclass(frozen=True)
class KnownExemplar:
    """A labelled exemplar. distance is the root mean square over robustly scaled features."""

    id: str
    family: str
    distance: float


def nearest_known(store: Store, shared: SharedIndex, members: Sequence[str], k: int) -> list[KnownExemplar]:
    """Return the k labelled exemplars nearest to a cluster's most typical member, the nearest first.

    members are the cluster's, the most typical first; of the first hundred the one with features of this
    version stands for them. Raises IndexBusyError or StoreUnavailableError.
    """
    labelled = exemplars.c.shelf.in_(("rehearsal", "held-back")) & exemplars.c.family.is_not(None)
    with store.read() as connection:
        query = select(exemplars.c.id, exemplars.c.family).where(labelled)
        families = {row.id: row.family for row in connection.execute(query)}
    with shared.current() as index:
        own, known = index.places(members[:_TRIED]), index.places(list(families))
        own = own[own >= 0]
        found = index.nearest(int(own[0]), k, known[known >= 0]) if len(own) else []
    return [KnownExemplar(match.id, families[match.id], match.distance) for match in found]
