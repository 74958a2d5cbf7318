"""The measures of continual learning and of rejection, as pure functions of numpy arrays.

Scores follow one sign: higher means more likely to be of the positive class, and every function
says which class that is. B is the matrix of CDDB (Li et al. 2023): B[i, j] is the accuracy on task
i after training on task j, in points, meaningful for i <= j.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def aa(matrix: ArrayLike) -> float:
    """Return the average accuracy: the mean over tasks i of B[i, n-1]. In B's unit."""
    return float(_square(matrix)[:, -1].mean())


def af(matrix: ArrayLike) -> float:
    """Return the average forgetting as CDDB's published code counts it; negative means forgotten.

    The mean over i < n-1 (from 0) of B[i, n-1] - B[i, i]. In B's unit; nan for a single task.
    """
    b = _square(matrix)
    if len(b) < 2:
        return math.nan
    return float((b[:-1, -1] - b.diagonal()[:-1]).mean())


def af_paper(matrix: ArrayLike) -> float:
    """Return the average forgetting as CDDB's paper prints it; negative means forgotten.

    The mean over i of BWT_i = 1/(n-i-1) * sum over j in i+1..n of (B[i, j] - B[i, i]), i and j from 1.
    Where i = n-1 the printed divisor is zero: that task is left out of the mean, so there are n-2
    terms. In B's unit; nan for fewer than three tasks.
    """
    b = _square(matrix)
    n = len(b)
    if n < 3:
        return math.nan
    return float(np.mean([(b[i - 1, i:] - b[i - 1, i - 1]).sum() / (n - i - 1) for i in range(1, n - 1)]))


def aa_m(predicted: Sequence[ArrayLike], targets: Sequence[ArrayLike]) -> float:
    """Return the average recognition accuracy AA-M of CDDB (section 3.3), in points, 0..100.

    predicted, targets: for each task the classes, 1-D and of one length, that its test items were called
    and are, after the last task. The mean over tasks of the share called by their very class, so that a
    fake named as another source's fake is wrong here and right in `aa`. nan for a task of no items.
    """
    shares = [
        float(np.mean(np.asarray(called) == np.asarray(is_))) if np.size(is_) else math.nan
        for called, is_ in zip(predicted, targets, strict=True)
    ]
    return 100 * float(np.mean(shares))


def mean_ap(fakes: Sequence[ArrayLike], reals: Sequence[ArrayLike]) -> float:
    """Return CDDB's mAP (section 3.3), in points, 0..100: the mean over tasks of the AP of their fakes.

    fakes, reals: for each task the scores, higher = more likely fake, of its fakes (the positive class)
    and of its reals. nan where a task has none of either.
    """
    pairs = zip(fakes, reals, strict=True)
    return 100 * float(np.mean([average_precision(fake, real) for fake, real in pairs]))


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


def fpr95(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return the share of negatives at or above the highest threshold that keeps 95 % of the positives.

    The positive class is the one that the caller names: the same scores give another figure when it
    is the unknown media than when it is the known ones with the sign turned. nan where one is empty.
    """
    kept, other = np.asarray(positive, np.float64), np.asarray(negative, np.float64)
    if not len(kept) or not len(other):
        return math.nan
    threshold = np.sort(kept)[::-1][math.ceil(0.95 * len(kept)) - 1]
    return float((other >= threshold).mean())


def average_precision(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return the mean over the positives of the precision at the threshold that just catches each.

    So it is the area below the stepped curve of precision over recall. The positive class is the one
    that the caller names, and at chance it is the positives' share. nan where one is empty.
    """
    higher, lower = np.sort(np.asarray(positive, np.float64)), np.sort(np.asarray(negative, np.float64))
    if not len(higher) or not len(lower):
        return math.nan
    caught = len(higher) - np.searchsorted(higher, higher, "left")
    false = len(lower) - np.searchsorted(lower, higher, "left")
    return float((caught / (caught + false)).mean())


def caught_at(unknown: ArrayLike, known: ArrayLike, false_share: float = 0.05) -> float:
    """Return the share of the unknown that is above the lowest threshold that turns away few known.

    That is the lowest with at most `false_share` of the known scores above it; it is picked on these
    scores, so the deployed one will not do as well. nan where one is empty.
    """
    turned_away, kept = np.asarray(unknown, np.float64), np.asarray(known, np.float64)
    if not len(turned_away) or not len(kept):
        return math.nan
    threshold = weighted_quantile(kept, np.ones(len(kept)), 1 - false_share)
    return float((turned_away > threshold).mean())


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


def _square(matrix: ArrayLike) -> NDArray[np.float64]:
    b = np.asarray(matrix, np.float64)
    if b.ndim != 2 or b.shape[0] != b.shape[1] or not len(b):
        raise ValueError(f"the matrix of accuracies must be square, not {b.shape}")
    return b
