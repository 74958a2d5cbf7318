"""Figures of maps that say where pictures are forged.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.1.2 and
H.1, and four of our own. p and g hold what is said and what is true, a map a picture: [h, w], 0..1, 1 =
forged, each of p of the size of its g. Every figure is a mean over pictures, 0..1, and nan of none. Each
function raises ValueError for a map of another size, of no cell, or with a value that is not finite.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from updater.measures import auroc

FORGED_FROM = 0.1
"""a cell counts as forged where its true value is at least this: in `iou`, `f1` and `pixel_auc`"""
MARKED_SHARE = 0.02
"""a real picture counts as marked where more than this share of its cells is"""
# Differences of decimal fractions are off by rounding: 0.65 - 0.6 is above 0.05.
_SLACK = 1e-9

Map = NDArray[np.float64]


def agree(p: Sequence[ArrayLike], g: Sequence[ArrayLike], threshold: float) -> float:
    """Return the share of cells that are on one side of the threshold in both: the paper's IoU.

    As printed there it lacks the "1 -", and is the share that disagrees. It is no intersection over union.
    """
    return _mean(((said >= threshold) == (true >= threshold)).mean() for said, true in _pairs(p, g))


def close(p: Sequence[ArrayLike], g: Sequence[ArrayLike], tolerance: float) -> float:
    """Return the share of cells that differ by at most the tolerance: the paper's IoU_diff."""
    return _mean((np.abs(said - true) <= tolerance + _SLACK).mean() for said, true in _pairs(p, g))


def l1(p: Sequence[ArrayLike], g: Sequence[ArrayLike]) -> float:
    """Return the mean difference, smaller is better. The paper prints 100 · (1 - l1)."""
    return _mean(np.abs(said - true).mean() for said, true in _pairs(p, g))


def iou(p: Sequence[ArrayLike], g: Sequence[ArrayLike], threshold: float = 0.5) -> float:
    """Return the intersection over union of what is marked and what is forged, of forged pictures.

    threshold: the release's, from which on a cell of p is marked. A picture with no forged cell is left out.
    """

    def of(marked: NDArray[np.bool_], forged: NDArray[np.bool_]) -> float:
        return float((marked & forged).sum() / (marked | forged).sum())

    return _mean(of(said >= threshold, forged) for said, forged in _with_forged_cells(p, g))


def f1(p: Sequence[ArrayLike], g: Sequence[ArrayLike], threshold: float = 0.5) -> float:
    """Return F1 of what is marked against what is forged; its arguments are those of `iou`."""

    def of(marked: NDArray[np.bool_], forged: NDArray[np.bool_]) -> float:
        return float(2 * (marked & forged).sum() / (marked.sum() + forged.sum()))

    return _mean(of(said >= threshold, forged) for said, forged in _with_forged_cells(p, g))


def pixel_auc(p: Sequence[ArrayLike], g: Sequence[ArrayLike]) -> float:
    """Return the AUC of telling a picture's forged cells from its others, of pictures that have both."""
    return _mean(
        auroc(said[forged], said[~forged]) for said, forged in _with_forged_cells(p, g) if not forged.all()
    )


def reals_marked(p: Sequence[ArrayLike], threshold: float = 0.5) -> float:
    """Return the share of real pictures, whose maps p holds, more than 2 % of whose cells are marked."""
    return _mean(float((said >= threshold).mean() > MARKED_SHARE) for said, _ in _pairs(p, p))


def figures(
    p: Sequence[ArrayLike], g: Sequence[ArrayLike], forged: Sequence[bool], threshold: float = 0.5
) -> dict[str, float | dict[str, float]]:
    """Return every figure by its name, and under "zeros" those of maps that are 0 everywhere.

    forged: whether each picture is. `iou`, `f1` and `pixel_auc` are of forged pictures alone, and so is
    what is named `…_forged`; what lies outside of the smallest forgeries makes the empty map look good in
    the others.
    """
    empty = [np.zeros(np.shape(true)) for true in g]
    return {**_figures(p, g, forged, threshold), "zeros": _figures(empty, g, forged, threshold)}


def _figures(
    p: Sequence[ArrayLike], g: Sequence[ArrayLike], forged: Sequence[bool], threshold: float
) -> dict[str, float]:
    of_all: dict[str, Callable[[Sequence[ArrayLike], Sequence[ArrayLike]], float]] = {
        "agree_0.1": lambda said, true: agree(said, true, 0.1),
        "agree_0.2": lambda said, true: agree(said, true, 0.2),
        "close_0.01": lambda said, true: close(said, true, 0.01),
        "close_0.05": lambda said, true: close(said, true, 0.05),
        "l1": l1,
    }
    pairs = list(zip(p, g, forged, strict=True))
    said, true = [one for one, _, is_forged in pairs if is_forged], [t for _, t, f in pairs if f]
    return {
        **{name: figure(p, g) for name, figure in of_all.items()},
        **{f"{name}_forged": figure(said, true) for name, figure in of_all.items()},
        "iou": iou(said, true, threshold),
        "f1": f1(said, true, threshold),
        "pixel_auc": pixel_auc(said, true),
        "reals_marked": reals_marked([one for one, _, is_forged in pairs if not is_forged], threshold),
    }


def _pairs(p: Sequence[ArrayLike], g: Sequence[ArrayLike]) -> Iterator[tuple[Map, Map]]:
    for number, (said, true) in enumerate(zip(p, g, strict=True)):
        one, other = np.asarray(said, np.float64), np.asarray(true, np.float64)
        if one.shape != other.shape or one.ndim != 2 or not one.size:
            raise ValueError(f"map {number} is {one.shape} and its truth {other.shape}: both must be [h, w]")
        if not (np.isfinite(one).all() and np.isfinite(other).all()):
            raise ValueError(f"map {number} or its truth has a value that is not a finite number")
        yield one, other


def _with_forged_cells(
    p: Sequence[ArrayLike], g: Sequence[ArrayLike]
) -> Iterator[tuple[Map, NDArray[np.bool_]]]:
    for said, true in _pairs(p, g):
        if (forged := true >= FORGED_FROM).any():
            yield said, forged


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else math.nan
