"""From a trained head over time to what is served: from which score on a stretch is told, and how it does."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detector.looks.stretches import Segments, best_score, stretches
from detector.model.scanner import Scanner
from updater.measures import conformal_bound
from updater.records import FoundStretches
from updater.scan.clips import ScannedClip
from updater.scan.measures import ap_at, tiou
from updater.scan.training import frame_scores

MAX_REALS_TOLD = 0.05
FOUND_FROM = 0.5
"""tIoU with a true stretch, from which on it counts as found"""
_LEAST = 0.01


def threshold_for(best: Sequence[float]) -> float:
    """Return the lowest threshold that few enough real clips reach, in 0.01..1.

    best: the score of each clip's best stretch, at least one. One more real clip of their kind reaches it
    with a chance of at most 5 %, from 19 clips on; see `updater.measures.conformal_bound`.
    """
    return float(np.clip(np.nextafter(conformal_bound(best, MAX_REALS_TOLD), 2), _LEAST, 1))


def threshold_of(simulated: Sequence[Segments], videos: Sequence[Segments]) -> float:
    """Return the higher threshold of two kinds of real clips, by what a scanner says of them.

    Simulated ones, at least one; and real videos, if there are any.
    """
    return max(threshold_for([best_score(one) for one in some]) for some in (simulated, videos) if some)


def told(scanner: Scanner, clips: Sequence[ScannedClip]) -> list[Segments]:
    """Return the stretches of each clip by a scanner, whatever their score."""
    return [stretches(frame_scores(scanner, clip)) for clip in clips]


def share_told(segments: Sequence[Segments], threshold: float) -> float:
    """Return the share of clips with a stretch that is told."""
    return float(np.mean([best_score(one) >= threshold for one in segments]))


def found(segments: NDArray[np.float64], truth: ArrayLike) -> NDArray[np.bool_]:
    """Return which true stretches, [m, 2], some told one meets, bool [m]; segments: [n, 2] in one unit."""
    return np.asarray((tiou(segments, truth) >= FOUND_FROM).any(0))


def fared(scanner: Scanner, clips: Sequence[ScannedClip], threshold: float) -> FoundStretches:
    """Measure a scanner on held-back clips, some real and some forged."""
    segments, truth = told(scanner, clips), [clip.segments for clip in clips]
    real = [one for one, true in zip(segments, truth, strict=True) if not len(true)]
    met = [found(one[one[:, 2] >= threshold, :2], true) for one, true in zip(segments, truth, strict=True)]
    return FoundStretches(
        reals=len(real),
        reals_told=share_told(real, threshold),
        forged=len(clips) - len(real),
        stretches=sum(map(len, truth)),
        found=float(np.concatenate(met).mean()),
        ap_50=ap_at(segments, truth, 0.5),
    )
