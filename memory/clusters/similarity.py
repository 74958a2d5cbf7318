"""More like these: a cluster by likeness to members that a person marked, and labelled exemplars near it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf
from sqlalchemy import select

from memory.features import Floats
from memory.index.index import Index
from memory.index.shared_index import SharedIndex
from memory.records import REAL, KnownNeighbour
from memory.schema import exemplars
from memory.store import ExemplarMemoryError, Store

_TRIED = 100
Ids = Sequence[str]


def nearest_known(store: Store, shared: SharedIndex, members: Sequence[str], k: int) -> list[KnownNeighbour]:
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
        neighbours = index.nearest(int(own[0]), k, known[known >= 0]) if len(own) else []
    return [KnownNeighbour(**vars(match), family=families[match.id]) for match in neighbours]


_REALS = 1000
"""Of 30 the order was as good as of 400."""


class NothingMarkedError(ExemplarMemoryError):
    """Fatal for the request: none of a cluster's members is marked."""


def alike(store: Store, shared: SharedIndex, members: Sequence[str], marks: Sequence[str]) -> list[str]:
    """Return the members of a cluster, by id: the marked first, then the others, the likest to them first.

    Marks that are no members do not count. What has no features of this version comes last. Raises
    NothingMarkedError, IndexBusyError or StoreUnavailableError.
    """
    chosen = set(marks)
    marked = [member for member in members if member in chosen]
    if not marked:
        raise NothingMarkedError("nothing that waits in the cluster is marked: mark some, five are enough")
    others = [member for member in members if member not in chosen]
    known_reals = (exemplars.c.shelf == "rehearsal") & (exemplars.c.family == REAL)
    some = select(exemplars.c.id).where(known_reals).order_by(exemplars.c.id).limit(_REALS)
    with store.read() as connection:
        reals = connection.scalars(some).all()
    with shared.current() as index:
        scores = _scores(index, marked, others, reals)
    return [*marked, *(others[i] for i in np.argsort(-scores, kind="stable"))]


def _scores(index: Index, marked: Ids, others: Ids, reals: Ids) -> NDArray[np.float64]:
    """Return how much each of the others resembles the marked, float64 (n,); -inf without features."""
    places = index.places(others)
    there = np.flatnonzero(places >= 0)
    own, known = (index.at(p[p >= 0]) for p in (index.places(marked), index.places(reals)))
    scores = np.full(len(others), -np.inf)
    if len(own):
        rest = index.at(places[there])
        mean = (own.sum(0) + rest.sum(0)) / (len(own) + len(rest))
        scores[there] = rest @ towards(own, mean, known)
    return scores


def towards(marked: Floats, mean: Floats, reals: Floats) -> Floats:
    """Return the direction, float32 (F,), towards items that resemble the marked, float32 (k, F).

    It leads from the cluster's mean, (F,), to that of the marked, whitened by the covariance of known reals,
    float32 (m, F), shrunk as in Ledoit and Wolf 2004. That is Fisher's linear discriminant with the reals'
    scatter for the one within a kind: few marks cannot fix a covariance, and the cluster's own holds the
    difference that is sought. With fewer than two reals nothing is whitened.
    """
    direction: Floats = marked.mean(0) - mean
    if len(reals) < 2:
        return direction
    covariance, _ = ledoit_wolf(reals.astype(np.float64))
    return np.asarray(np.linalg.solve(covariance, direction), np.float32)
