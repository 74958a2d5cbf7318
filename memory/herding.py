"""Which exemplars stand for a class: herding, and the places that each class gets of a budget."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_ROWS_AT_ONCE = 2**14


def herd(
    features: NDArray[np.float32],
    count: int,
    sources: Sequence[str] | None = None,
    max_per_source: int | None = None,
) -> NDArray[np.int64]:
    """Return the rows of features, float32 (n, D), that stand best for their mean, the best first.

    Rebuffi et al. 2017, "iCaRL", algorithm 4, as CDDB uses it: rows are L2-normalised to phi with
    mean mu, and the k-th pick minimises |mu - (phi + sum of those picked) / k|. Ties go to the
    lower row. A shorter answer is always the beginning of a longer one. At most count rows, and of
    one source (sources: one for each row) at most max_per_source.
    """
    phi = features.astype(np.float64)
    for block in _blocks(phi):
        block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)
    mean = phi.mean(axis=0) if len(phi) else np.zeros(phi.shape[1])
    total = np.zeros_like(mean)
    free = np.ones(len(phi), bool)
    taken: Counter[str] = Counter()
    picked: list[int] = []
    while len(picked) < count and free.any():
        distance = np.concatenate(
            [np.linalg.norm(mean - (block + total) / (len(picked) + 1), axis=1) for block in _blocks(phi)]
        )
        distance[~free] = np.inf
        best = int(distance.argmin())
        picked.append(best)
        total += phi[best]
        free[best] = False
        if sources is not None and max_per_source is not None:
            taken[sources[best]] += 1
            if taken[sources[best]] >= max_per_source:
                free &= np.array([s != sources[best] for s in sources])
    return np.array(picked, np.int64)


def _blocks(rows: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return views of some rows each: what is computed of a million at once would be as large as they are."""
    return [rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE)]


def shares(available: Mapping[str, int], budget: int) -> dict[str, int]:
    """Return the places of each class: the same for all, or what it has where that is less.

    Places that a class cannot fill go to the others (max-min fairness, filled like water), so the sum
    is the budget, or all that there is. A place that does not divide goes to the larger class, of
    equals to the later name.
    """
    places: dict[str, int] = {}
    for name in sorted(available, key=lambda name: (available[name], name)):
        places[name] = min(available[name], budget // (len(available) - len(places)))
        budget -= places[name]
    return places
