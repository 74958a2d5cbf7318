"""What a candidate has lost against the live release, both having judged the very same items; pure.

Two releases are seldom wrong about the same items, so that on few of them chance alone makes one look better.
The paired differences say how much chance can do: what both get right, or both wrong, adds nothing to it.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from memory.records import REAL
from updater.measures import balanced_weights
from updater.records import Lost

CONFIDENCE = 0.95
"""that what was truly lost is not below `low`; and, apart from that, that it is not above `high`"""


def lost_on(
    before: ArrayLike, after: ArrayLike, families: Sequence[str], groups: Sequence[str]
) -> Lost | None:
    """Return by how much the accuracy on n items fell from the live release to the candidate.

    before, after: bool [m, n], whether each called each item what it is under each of m distortions.
    families, groups: of each item. The accuracy is that of `figures.accuracy`, averaged over the distortions:
    reals weigh half, the families share the other half equally, and groups share their family's. None without
    a real or without a forgery.

    The ends are those of Student's t interval of the weighted mean of paired differences. Groups are the
    witnesses, with all m distortions of a group one, since these are not independent; the distortions and the
    training's seed are taken as given. With fewer than two groups of reals or of forgeries nothing is
    excluded, and the ends are -1 and 1.

    What it can see, simulated with releases that are right in 75 % and share half of what makes an item hard:
    of candidates that are truly 15 points worse, `low` is above 5 points in 96 of 100 with 80 + 80 items, 81
    with 40 + 40, 54 with 20 + 20, 33 with 10 + 10 and 17 with 5 + 5. Of equal ones it is so in at most 1 of
    100, where `share` alone is in 3, 8, 17, 26 and 31.
    """
    fell = np.asarray(before, np.float64).mean(0) - np.asarray(after, np.float64).mean(0)
    real = np.array(families) == REAL
    if not len(fell) or real.all() or not real.any():
        return None
    sides = [_side(fell[of], np.array(families)[of], np.array(groups)[of]) for of in (real, ~real)]
    share = sum(mean for mean, _, _ in sides) / 2
    freedom = sum(count - 1 for _, _, count in sides)
    spread = math.sqrt(sum(variance for _, variance, _ in sides)) / 2
    reach = float(t.ppf(CONFIDENCE, freedom)) * spread if math.isfinite(spread) else math.inf
    return Lost(
        share=share,
        low=max(-1.0, share - reach),
        high=min(1.0, share + reach),
        reals=int(real.sum()),
        forgeries=int((~real).sum()),
    )


def _side(
    fell: NDArray[np.float64], families: NDArray[np.str_], groups: NDArray[np.str_]
) -> tuple[float, float, int]:
    """Return the weighted mean over the groups, its variance and their number; families weigh the same."""
    weights = balanced_weights(families, groups)
    mean = float(weights @ fell)
    _, of = np.unique(np.stack([families, groups], 1), axis=0, return_inverse=True)
    parts = np.bincount(of, weights * (fell - mean))
    count = len(parts)
    return mean, float(parts @ parts) * count / (count - 1) if count > 1 else math.inf, count
