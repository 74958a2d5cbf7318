"""From what is said of each frame to stretches of a video that are said to be forged. Pure.

Segments are half open, in frames: float64 [n, 3] of (first, end, score), the best first.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Segments = NDArray[np.float64]

THRESHOLDS = (0.15, 0.25, 0.35, 0.5, 0.65, 0.8)
TOLERANCES = (1, 3)
SHORTEST = 5
MOST = 10
_BESIDE = 5
"""frames on each side that a segment is held against"""
_DECAY = 0.5


def stretches(scores: ArrayLike) -> Segments:
    """Return at most `MOST` segments of a video by the scores of its frames, [T] in 0..1, 1 for forged.

    Runs are taken at several thresholds, with gaps closed as far as each tolerance allows. A segment's score
    is the mean inside of it times one minus the mean just outside: so of runs about one stretch, that with
    the sharpest ends wins. Soft-NMS then lowers what overlaps a better one.
    """
    of_frames = np.asarray(scores, np.float64)
    found = {
        run
        for threshold in THRESHOLDS
        for tolerance in TOLERANCES
        for run in runs(of_frames >= threshold, tolerance, SHORTEST)
    }
    proposed = [(first, end, _standing_out(of_frames, first, end)) for first, end in sorted(found)]
    return soft_nms(np.array(proposed, np.float64).reshape(-1, 3), _DECAY)


def runs(forged: NDArray[np.bool_], tolerance: int, shortest: int) -> list[tuple[int, int]]:
    """Return the maximal runs of frames, (first, end) each, that begin and end with a forged one.

    forged: bool [T]. Within a run at most `tolerance` frames in a row are not forged, and it has at least
    `shortest` frames.
    """
    places = np.flatnonzero(forged)
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) > tolerance + 1) + 1
    parts = np.split(places, cuts)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if part[-1] + 1 - part[0] >= max(1, shortest)]


def soft_nms(
    segments: Segments,
    alpha: float,
    bounds: tuple[float, float] = (0.0, 0.0),
    length: float = 1.0,
    most: int = MOST,
) -> Segments:
    """Lower the scores of segments that overlap better ones; return the `most` best that are left.

    Bodla et al. 2017, "Soft-NMS": the score is multiplied by exp(-tIoU² / alpha), where the tIoU exceeds a
    bound. Of segments as long as `length` the bound is the second of `bounds`, of shorter ones by so much
    less, down to the first for one of no length (Lin et al. 2018, "BSN", in its code).
    """
    left = np.array(segments, np.float64).reshape(-1, 3)
    kept: list[NDArray[np.float64]] = []
    while len(left) and len(kept) < most:
        at = int(left[:, 2].argmax())
        best = left[at]
        kept.append(best.copy())
        left = np.delete(left, at, axis=0)
        overlap = _tiou(best, left)
        bound = bounds[0] + (bounds[1] - bounds[0]) * (best[1] - best[0]) / length
        left[:, 2] *= np.where(overlap > bound, np.exp(-(overlap**2) / alpha), 1)
    return np.array(kept, np.float64).reshape(-1, 3)


def best_score(segments: Segments) -> float:
    """Return the score of the best segment; 0 where there is none."""
    return float(segments[:, 2].max(initial=0))


def _standing_out(scores: NDArray[np.float64], first: int, end: int) -> float:
    beside: Sequence[float] = [*scores[max(0, first - _BESIDE) : first], *scores[end : end + _BESIDE]]
    return float(scores[first:end].mean()) * (1 - (float(np.mean(beside)) if beside else 0.0))


def _tiou(one: NDArray[np.float64], others: Segments) -> NDArray[np.float64]:
    common = np.maximum(np.minimum(one[1], others[:, 1]) - np.maximum(one[0], others[:, 0]), 0)
    union = (one[1] - one[0]) + (others[:, 1] - others[:, 0]) - common
    return np.asarray(common / np.maximum(union, 1e-12))
