"""The measures of continual learning and of rejection in the papers' tables.

Scores follow one sign: higher means more likely to be of the positive class, and every function
says which class that is. B is the matrix of CDDB (Li et al. 2023): B[i, j] is the accuracy on task
i after training on task j, in points, meaningful for i <= j. The average accuracy (AA) is the mean of its
last column; of the 32 rows of CDDB's table 3, ten print another AA than the mean of their tasks.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from updater.measures import weighted_quantile


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


def _square(matrix: ArrayLike) -> NDArray[np.float64]:
    b = np.asarray(matrix, np.float64)
    if b.ndim != 2 or b.shape[0] != b.shape[1] or not len(b):
        raise ValueError(f"the matrix of accuracies must be square, not {b.shape}")
    return b
