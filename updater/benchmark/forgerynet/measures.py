"""The figures of ForgeryNet's tasks on pictures, clips and maps, as pure functions of numpy arrays.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.1.1, 4.1.2
and H.1, and four of our own on maps. Every figure is 0..1, and nan where there is nothing to measure it by.
ValueError is raised for a value that is not finite.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from updater.benchmark.report.results import average_precision
from updater.measures import auroc

FORGED_FROM = 0.1
"""a cell counts as forged where its true value is at least this: in iou, f1 and pixel_auc"""
MARKED_SHARE = 0.02
"""a real picture counts as marked where more than this share of its cells is"""
# Differences of decimal fractions are off by rounding: 0.65 - 0.6 is above 0.05.
_SLACK = 1e-9
_OF_CELLS = ("agree_0.1", "agree_0.2", "close_0.01", "close_0.05", "l1")
OF_FORGED = ("iou", "f1", "pixel_auc")


def image_figures(p: ArrayLike, y: ArrayLike) -> dict[str, float]:
    """Return the figures of pictures or clips as a whole, by their names.

    p: probabilities, [n, k]; y: classes, int [n], of which 0 is real. The fake score of an item is f = 1 -
    p[:, 0]. A mean over classes leaves out those that the data lacks; `absent` names them.
      acc: balanced accuracy, the mean over classes of the recall of the likeliest class
      auc, auc_2: area under the ROC of f, ties half
      map_ovr: what the paper calls mAP, the mean over classes of the AUC of a class's own probability
      mean_ap: the same mean of average precisions
      acc_2: balanced accuracy at telling real from forged, where the likeliest class is the answer
      acc_2_sum: the same, where f >= 0.5 is forged; the paper does not say which of the two it has
    """
    probabilities, classes = _finite(p), np.asarray(y, np.int64)
    likeliest, forged, fake = probabilities.argmax(1), classes > 0, 1 - probabilities[:, 0]
    auc = auroc(fake[forged], fake[~forged])
    return {
        "acc": _balanced_accuracy(likeliest, classes),
        "auc": auc,
        "map_ovr": _over_classes(auroc, probabilities, classes),
        "mean_ap": _over_classes(average_precision, probabilities, classes),
        "acc_2": _balanced_accuracy(likeliest != 0, forged),
        "acc_2_sum": _balanced_accuracy(fake >= 0.5, forged),
        "auc_2": auc,
    }


def absent(p: ArrayLike, y: ArrayLike) -> tuple[int, ...]:
    """Return the classes of p that no item is of."""
    return tuple(sorted(set(range(np.shape(p)[1])) - set(np.asarray(y).tolist())))


def map_figures(
    p: Sequence[ArrayLike], g: Sequence[ArrayLike], forged: Sequence[bool], threshold: float = 0.5
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of maps by their names, and those of maps that are 0 everywhere.

    p, g: what is said and what is true, a map a picture: [h, w], 0..1, 1 = forged. forged: whether each
    picture is. A figure is the mean over pictures of `cell_figures`; iou, f1, pixel_auc and `…_forged` are of
    forged pictures alone: what lies outside of the smallest forgeries makes the empty map look good in the
    others. reals_marked is the share of real pictures of whose cells more than 2 % are marked.
    """
    return _of_maps(p, g, forged, threshold), _of_maps(
        [np.zeros(np.shape(t)) for t in g], g, forged, threshold
    )


def cell_figures(p: ArrayLike, g: ArrayLike, threshold: float = 0.5) -> dict[str, float]:
    """Return the figures of one map; a picture without a forged cell, or without another, lacks some.

    threshold: the release's, from which on a cell of p is marked.
      agree_T: share of cells on one side of T in both, the paper's IoU. As printed there it lacks the "1 -",
        and is the share that disagrees. It is no intersection over union
      close_T: share of cells that differ by at most T, the paper's IoU_diff
      l1: mean difference, smaller is better; the paper prints 100 (1 - l1)
      iou, f1: of what is marked and what is forged
      pixel_auc: AUC of telling forged cells from the others
    """
    cut, true = _finite(p), _finite(g)
    apart, cells, marked = np.abs(cut - true), true >= FORGED_FROM, cut >= threshold
    figures = {f"agree_{t}": float(((cut >= t) == (true >= t)).mean()) for t in (0.1, 0.2)}
    figures |= {f"close_{t}": float((apart <= t + _SLACK).mean()) for t in (0.01, 0.05)}
    figures["l1"] = float(apart.mean())
    if cells.any():
        figures["iou"] = float((marked & cells).sum() / (marked | cells).sum())
        figures["f1"] = float(2 * (marked & cells).sum() / (marked.sum() + cells.sum()))
        if not cells.all():
            figures["pixel_auc"] = auroc(cut[cells], cut[~cells])
    return figures


def _of_maps(
    p: Sequence[ArrayLike], g: Sequence[ArrayLike], forged: Sequence[bool], threshold: float
) -> dict[str, float]:
    rows = [cell_figures(map_, true, threshold) for map_, true in zip(p, g, strict=True)]
    own = [row for row, is_forged in zip(rows, forged, strict=True) if is_forged]
    reals = [np.asarray(map_) for map_, is_forged in zip(p, forged, strict=True) if not is_forged]
    marked = [{"reals_marked": float((map_ >= threshold).mean() > MARKED_SHARE)} for map_ in reals]
    return {
        **{name: _mean(rows, name) for name in _OF_CELLS},
        **{f"{name}_forged": _mean(own, name) for name in _OF_CELLS},
        **{name: _mean(own, name) for name in OF_FORGED},
        "reals_marked": _mean(marked, "reals_marked"),
    }


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    present = [row[name] for row in rows if name in row]
    return float(np.mean(present)) if present else math.nan


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a probability, or a cell of a map, is not a finite number")
    return array


def _balanced_accuracy(answers: NDArray[np.generic], true: NDArray[np.generic]) -> float:
    recalls = [float((answers[true == label] == label).mean()) for label in np.unique(true)]
    return float(np.mean(recalls)) if recalls else math.nan


def _over_classes(
    figure: Callable[[ArrayLike, ArrayLike], float],
    probabilities: NDArray[np.float64],
    classes: NDArray[np.int64],
) -> float:
    """Return the mean of a figure of (positives, negatives) over the classes that have both."""
    values = []
    for label in np.unique(classes):
        of_it, score = classes == label, probabilities[:, label]
        if not of_it.all():
            values.append(figure(score[of_it], score[~of_it]))
    return float(np.mean(values)) if values else math.nan
