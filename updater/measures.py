"""Weighted quantiles, bounds and areas, as pure functions of numpy arrays; and whitenings."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def auroc(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return the chance that a positive's score is above a negative's, ties counting half.

    Both are 1-D arrays of scores; nan where one is empty.
    """
    higher, lower = np.asarray(positive, np.float64), np.sort(np.asarray(negative, np.float64))
    if not len(higher) or not len(lower):
        return math.nan
    below = np.searchsorted(lower, higher, "left")
    not_above = np.searchsorted(lower, higher, "right")
    return float((below + not_above).mean() / (2 * len(lower)))


def roc_points(positive: ArrayLike, negative: ArrayLike, most: int) -> NDArray[np.float64]:
    """Return at most so many points of the ROC curve, float64 [n, 2]: false and true positive rates, rising.

    The scores are those of `auroc`; both ends are among the points, and what is left out is spread evenly
    along the curve. Empty where one of the scores is.
    """
    from sklearn.metrics import roc_curve  # as slow to load as in `_within_class`

    high, low = np.asarray(positive, np.float64), np.asarray(negative, np.float64)
    if not len(high) or not len(low):
        return np.zeros((0, 2))
    truth = np.repeat([1, 0], [len(high), len(low)])
    false, true, _ = roc_curve(truth, np.concatenate([high, low]))
    way = false + true
    kept = np.unique(np.searchsorted(way, np.linspace(0, way[-1], most)).clip(max=len(way) - 1))
    return np.asarray(np.stack([false, true], 1)[kept])


def auroc_interval(auc: float, positives: int, negatives: int) -> tuple[float, float]:
    """Return the 95 % interval of an AUROC of so many independent scores of each kind, within 0..1.

    By its standard error: Hanley and McNeil 1982, "The meaning and use of the area under a receiver operating
    characteristic (ROC) curve", eq. 1 and 2.
    """
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positives - 1) * (q1 - auc**2) + (negatives - 1) * (q2 - auc**2)
    error = math.sqrt(max(variance, 0.0) / (positives * negatives))
    return max(0.0, auc - 1.96 * error), min(1.0, auc + 1.96 * error)


def weighted_quantile(values: ArrayLike, weights: ArrayLike, share: float) -> float:
    """Return the lowest value at or below which at least `share` of the weight lies.

    values, weights: 1-D and of one length, weights not negative and not all zero; share in 0..1.
    """
    v, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    order = np.argsort(v)
    reached = np.cumsum(w[order]) / w.sum()
    return float(v[order][min(int(np.searchsorted(reached, share - 1e-12)), len(v) - 1)])


def conformal_bound(scores: ArrayLike, share: float) -> float:
    """Return the lowest of n scores, at least one, which few enough of them exceed.

    So few that one more of their kind exceeds it with a chance of at most share, 0..1, where n + 1 is
    1 / share or more (split conformal prediction: Papadopoulos et al. 2002). Of fewer scores none does.
    """
    ordered = np.sort(np.asarray(scores, np.float64))[::-1]
    return float(ordered[may_exceed(len(ordered), share)])


def may_exceed(count: int, share: float) -> int:
    """Return how many of so many scores may exceed a bound that is set on them; see `conformal_bound`."""
    return max(0, math.floor(share * (count + 1)) - 1)


def balanced_weights(names: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return a weight for each item, float64 [n], summing to 1: every name weighs the same.

    groups: of each item; the groups of one name share its weight equally, and so do the items of one
    group. Without groups every item is its own.
    """
    _, of = np.unique(np.asarray(names), return_inverse=True)
    if groups is None:
        return np.asarray(1 / np.bincount(of)[of] / (of.max() + 1))
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    pair, pair_of, size = np.unique(np.stack([of, group], 1), axis=0, return_inverse=True, return_counts=True)
    groups_of_name = np.bincount(pair[:, 0])
    return np.asarray(1 / size[pair_of] / groups_of_name[of] / (of.max() + 1))


_LEAST = 1e-6
"""of a variance, in units of a feature's own"""


def within_class_whitening(
    features: NDArray[np.float32], families: NDArray[np.str_]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean [F] and a matrix [F, F] so that (x - mean) @ matrix has within-class covariance 1.

    features: one row an item, float32 [n, F]; families: their classes, str [n]. The covariance is shrunk
    (Ledoit and Wolf 2004), so that the matrix can be inverted for any number of items.
    """
    scale, values, vectors = _within_class(features, families)
    whitening = (vectors / np.sqrt(values)) / scale[:, None]
    return features.mean(0).astype(np.float32), whitening.astype(np.float32)


def part_whitening(
    features: NDArray[np.float32], families: NDArray[np.str_], share: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean [F] and a matrix [F, F] that whitens only part of the way.

    A direction whose within-class variance is v, in units of each feature's own, gets v^(1 - share): a
    share of 0 leaves the features standardised, 1 makes all directions alike. Arguments as above.
    """
    scale, values, vectors = _within_class(features, families)
    whitening = (vectors * values ** (-share / 2)) @ vectors.T / scale[:, None]
    return features.mean(0).astype(np.float32), whitening.astype(np.float32)


def _within_class(
    features: NDArray[np.float32], families: NDArray[np.str_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return each feature's scale [F] and, in it, the shrunk covariance's eigenvalues [F] and vectors."""
    from sklearn.covariance import ledoit_wolf  # it takes a second, and the deploy server has no use for it

    centred = features.astype(np.float64)
    for family in np.unique(families):
        centred[families == family] -= centred[families == family].mean(0)
    scale = np.maximum(centred.std(0), 1e-3)  # Ledoit-Wolf shrinks towards a sphere: one unit for all
    covariance, _ = ledoit_wolf(centred / scale, assume_centered=True)
    values, vectors = np.linalg.eigh(covariance)
    # Of features that are the same in all items nothing is left to divide by.
    return scale, np.maximum(values, _LEAST), vectors
