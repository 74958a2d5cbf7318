"""A score that never looks at fakeness: what "source known" can be reached with all the same.

Where the reals of a source are known and its forgeries are left out, every other source has both. So whatever
lies nearest to that lone source is likely one of the forgeries, and a score that tells sources apart passes
for one that tells forgeries apart. Next to it stands what a score of rejection has to beat.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from detector.release.reference import Reference


def lone_source_scores(
    reference: Reference, source: str, features: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return how much nearer each item is to the lone source than to any other, float64 [n].

    s(x) = (distance to the nearest known item of another source) - (to the nearest of the lone one),
    Euclidean in the whitened forensic features. features: raw, float32 [n, F]. A known item's source is what
    its class says before the slash. Raises ValueError where no item of the reference is of the source, or all
    are.
    """
    lone = np.array([name.partition("/")[0] == source for name in reference.families], bool)
    if lone.all() or not lone.any():
        raise ValueError(
            f"{lone.sum()} of {len(lone)} known items are of {source}: some must be, and not all"
        )
    rows = reference.whiten(features)
    own, other = (_distances(reference.features[part], rows) for part in (lone, ~lone))
    return other - own


def _distances(known: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float64]:
    found = NearestNeighbors(n_neighbors=1).fit(known).kneighbors(rows)[0][:, 0]
    return np.asarray(found, np.float64)
