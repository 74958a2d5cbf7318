"""Figures of a picture or a clip as a whole: which of k classes it is, and whether it is forged.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.1.1 and
H.1. Throughout, p holds probabilities, [n, k], and y classes, int [n], of which 0 is real. The fake score
of an item is f = 1 - p[:, 0]. Shares are 0..1. An average over classes leaves out those that the data
lacks; `absent` names them. Every function raises ValueError where p is not finite, or does not fit y.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from updater.benchmark.measures.continual import average_precision
from updater.measures import auroc


def absent(p: ArrayLike, y: ArrayLike) -> tuple[int, ...]:
    """Return the classes of p that no item is of."""
    probabilities, classes = _checked(p, y)
    return tuple(sorted(set(range(probabilities.shape[1])) - set(classes.tolist())))


def acc(p: ArrayLike, y: ArrayLike) -> float:
    """Return the balanced accuracy: the mean over classes of the recall of the likeliest class."""
    probabilities, classes = _checked(p, y)
    return _balanced(probabilities.argmax(1), classes)


def auc(p: ArrayLike, y: ArrayLike) -> float:
    """Return the area under the ROC of f, ties half; nan without a real or without a forged item."""
    probabilities, classes = _checked(p, y)
    score = _fake_score(probabilities)
    return auroc(score[classes > 0], score[classes == 0])


def map_ovr(p: ArrayLike, y: ArrayLike) -> float:
    """Return what the paper calls mAP: the mean over classes of the AUC of a class's own probability.

    Each class is positive against all others. It is no average precision: `map` is. nan for a single class.
    """
    return _over_classes(auroc, p, y)


# The field's name, which no function of this module needs for the built-in one.
def map(p: ArrayLike, y: ArrayLike) -> float:
    """Return the mean over classes of the average precision of a class's own probability, against all others.

    nan where there is but one class.
    """
    return _over_classes(average_precision, p, y)


def acc_2(p: ArrayLike, y: ArrayLike) -> float:
    """Return the balanced accuracy at telling real from forged, where the likeliest class is the answer."""
    probabilities, classes = _checked(p, y)
    return _balanced(probabilities.argmax(1) != 0, classes > 0)


def acc_2_sum(p: ArrayLike, y: ArrayLike) -> float:
    """Return the balanced accuracy at telling real from forged, where f >= 0.5 is forged.

    The paper does not say which of this and `acc_2` it has.
    """
    probabilities, classes = _checked(p, y)
    return _balanced(_fake_score(probabilities) >= 0.5, classes > 0)


def auc_2(p: ArrayLike, y: ArrayLike) -> float:
    """Return the AUC at telling real from forged by f: `auc`, under its name for more than two classes."""
    return auc(p, y)


def figures(p: ArrayLike, y: ArrayLike) -> dict[str, float]:
    """Return every figure of this module by its name."""
    every = (acc, auc, map_ovr, map, acc_2, acc_2_sum, auc_2)
    return {figure.__name__: figure(p, y) for figure in every}


def _checked(p: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    probabilities, classes = np.asarray(p, np.float64), np.asarray(y, np.int64)
    if probabilities.ndim != 2 or classes.shape != probabilities.shape[:1]:
        raise ValueError(f"probabilities {probabilities.shape} do not fit classes {classes.shape}")
    if not np.isfinite(probabilities).all():
        raise ValueError("a probability is not a finite number")
    if len(classes) and not 0 <= classes.min() <= classes.max() < probabilities.shape[1]:
        raise ValueError(f"a class is none of the {probabilities.shape[1]} that there are probabilities of")
    return probabilities, classes


def _fake_score(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 - probabilities[:, 0]


def _balanced(said: NDArray[np.generic], true: NDArray[np.generic]) -> float:
    recalls = [float((said[true == one] == one).mean()) for one in np.unique(true)]
    return float(np.mean(recalls)) if recalls else math.nan


def _over_classes(figure: Callable[[ArrayLike, ArrayLike], float], p: ArrayLike, y: ArrayLike) -> float:
    """Return the mean of a figure of (positives, negatives) over the classes that have both."""
    probabilities, classes = _checked(p, y)
    found = []
    for one in np.unique(classes):
        of_it, score = classes == one, probabilities[:, one]
        if not of_it.all():
            found.append(figure(score[of_it], score[~of_it]))
    return float(np.mean(found)) if found else math.nan
