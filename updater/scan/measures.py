"""Figures of stretches of a video that are said to be forged.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.2 and
I.1, by the rules of ActivityNet's detection and proposal tasks (Heilbron et al. 2015). For each video,
`predicted` holds segments with their scores, [n, 3] of (first, end, score), and `truth` the forged ones,
[m, 2] of (first, end). They are half open, in one unit; a real video has no true segment. Figures are 0..1.
Every function raises ValueError for a segment that ends before it begins, a true one of no length, and a
number that is not finite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from updater.measures import auroc

TIOUS = tuple(percent / 100 for percent in range(50, 100, 5))
"""the thresholds of tIoU that `ap` and `ar` are means over"""
# Ratios of whole frames reach a threshold exactly, and rounding must not decide on which side they are.
_SLACK = 1e-9


@dataclass(frozen=True)
class _Video:
    """The n predictions of a video by falling score, equal ones as they came, beside its m true segments."""

    scores: NDArray[np.float64]
    tiou: NDArray[np.float64]
    """[n, m]"""


def ap_at(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike], threshold: float) -> float:
    """Return `ap@t`: the interpolated average precision at a threshold of tIoU.

    The predictions of all videos are taken by falling score. Each takes the free true segment of its video
    with the highest tIoU, if that is at least the threshold; else it is false. A true segment is taken
    once. Of equal scores the first video's, and in it the first, comes first. nan where no video has a true
    segment.
    """
    return _ap(_videos(predicted, truth), threshold)


def ap(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> float:
    """Return the mean of `ap_at` over `TIOUS`."""
    return _mean_ap(_videos(predicted, truth))


def ar_at(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike], most: int) -> float:
    """Return `ar@K`: the mean over `TIOUS` of the recall where each video keeps its K = `most` best.

    Of the videos with a true segment, all true segments alike; nan where there are none.
    """
    return _ar(_videos(predicted, truth), most)


def ar_share_at(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike], most: int) -> float:
    """Return `ar_share@K` as ActivityNet's proposal code and the paper count it, with K = `most`.

    Of N predictions in all, V videos having a true segment, a video keeps int(n · K · V / N) of its n. That
    is none at all for a video that has few beside others that have many.
    """
    return _ar_share(_videos(predicted, truth), most)


def frame_auc(scores: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> float:
    """Return the AUC of telling frames in true segments from all others, of all videos together.

    scores: of each video's frames, [T]; the segments of truth count in these frames. nan where all frames, or
    none, are forged. Raises ValueError for a segment beyond the last frame too.
    """
    forged, other = [np.zeros(0)], [np.zeros(0)]
    for of_frames, segments in zip(scores, truth, strict=True):
        score, inside = np.asarray(of_frames, np.float64), np.zeros(np.size(of_frames), bool)
        if not np.isfinite(score).all():
            raise ValueError("the score of a frame is not a finite number")
        for first, end in _segments(segments, 2):
            if not 0 <= first < end <= len(score):
                raise ValueError(
                    f"a true segment from {first:g} to {end:g} is not within {len(score)} frames"
                )
            inside[int(first) : int(end)] = True
        forged.append(score[inside])
        other.append(score[~inside])
    return auroc(np.concatenate(forged), np.concatenate(other))


def figures(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> dict[str, float]:
    """Return the figures that the papers' tables have, by name; `frame_auc` needs the frames' scores."""
    videos = _videos(predicted, truth)
    return {
        **{f"ap_{threshold:g}": _ap(videos, threshold) for threshold in (0.5, 0.75, 0.9)},
        "ap": _mean_ap(videos),
        **{f"ar_{most}": _ar(videos, most) for most in (2, 5)},
        **{f"ar_share_{most}": _ar_share(videos, most) for most in (2, 5)},
    }


def tiou(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Return the temporal intersection over union of every segment of a with every one of b, float64 [n, m].

    a, b: [n, 2] and [m, 2] of (first, end); 0 where both are of no length.
    """
    one, other = np.asarray(a, np.float64).reshape(-1, 2)[:, None], np.asarray(b, np.float64).reshape(-1, 2)
    common = np.minimum(one[..., 1], other[:, 1]) - np.maximum(one[..., 0], other[:, 0])
    common = np.maximum(common, 0)
    union = (one[..., 1] - one[..., 0]) + (other[:, 1] - other[:, 0]) - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0))


def _videos(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> list[_Video]:
    videos = []
    for said, true in zip(predicted, truth, strict=True):
        proposals, segments = _segments(said, 3), _segments(true, 2)
        if (segments[:, 1] <= segments[:, 0]).any():
            raise ValueError("a true segment is of no length")
        proposals = proposals[np.argsort(-proposals[:, 2], kind="stable")]
        videos.append(_Video(proposals[:, 2], tiou(proposals[:, :2], segments)))
    return videos


def _segments(values: ArrayLike, columns: int) -> NDArray[np.float64]:
    found = np.asarray(values, np.float64)
    found = found.reshape(-1, columns) if not found.size else found
    if found.ndim != 2 or found.shape[1] != columns or not np.isfinite(found).all():
        raise ValueError(f"segments must be finite and [n, {columns}], not {found.shape}")
    if (found[:, 1] < found[:, 0]).any():
        raise ValueError("a segment ends before it begins")
    return found


def _reaches(overlaps: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    return overlaps >= threshold - _SLACK


def _ap(videos: Sequence[_Video], threshold: float) -> float:
    if not (total := sum(of.tiou.shape[1] for of in videos)):
        return math.nan
    # True segments belong to a video, so that what is taken within each does not depend on the others.
    hits = np.concatenate([np.zeros(0, bool), *(_taking(of.tiou, threshold) for of in videos)])
    scores = np.concatenate([np.zeros(0), *(of.scores for of in videos)])
    hits = hits[np.argsort(-scores, kind="stable")]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    interpolated = np.maximum.accumulate(precision[::-1])[::-1]
    return float(interpolated[hits].sum() / total)


def _mean_ap(videos: Sequence[_Video]) -> float:
    return float(np.mean([_ap(videos, threshold) for threshold in TIOUS]))


def _taking(overlaps: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Return which of a video's predictions, by falling score, take a true segment, bool [n]."""
    free = np.where(_reaches(overlaps, threshold), overlaps, 0)
    takes = np.zeros(len(free), bool)
    for number in np.flatnonzero(free.any(1)):
        if free[number].any():
            takes[number] = True
            free[:, free[number].argmax()] = 0
    return takes


def _ar(videos: Sequence[_Video], most: int) -> float:
    return _recall(videos, [most] * len(videos))


def _ar_share(videos: Sequence[_Video], most: int) -> float:
    with_truth = sum(of.tiou.shape[1] > 0 for of in videos)
    total = max(1, sum(len(of.scores) for of in videos))
    return _recall(videos, [len(of.scores) * most * with_truth // total for of in videos])


def _recall(videos: Sequence[_Video], kept: Sequence[int]) -> float:
    """Return the mean over `TIOUS` of the recall where each video keeps so many of its best."""
    best = [of.tiou[:most].max(0, initial=0) for of, most in zip(videos, kept, strict=True)]
    reached = np.concatenate([np.zeros(0), *best])
    if not len(reached):
        return math.nan
    return float(np.mean([_reaches(reached, threshold).mean() for threshold in TIOUS]))
