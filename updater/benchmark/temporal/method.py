"""The interface of methods that find forged stretches, and the figures of ForgeryNet's temporal tables.

A method is trained on clips and answers for each clip's features. Segments are as `updater.scan.training` has
them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detector.second_pass.scan_look import Segments
from updater.measures import auroc
from updater.scan.clips import ScannedClip
from updater.scan.training import Overlaps, ap_at, checked_segments, overlaps, reaches


@dataclass(frozen=True)
class Localization:
    """A method's answer for one clip of T frames."""

    frame_scores: NDArray[np.float64]
    """[T] in 0..1, 1 for forged"""
    segments: Segments
    """[n, 3] of (first, end, score), half open, in frames; at most ten, the best first"""


Localizer = Callable[[NDArray[np.float32]], Localization]
"""Takes the raw features of a clip's frames, [T, F]."""

Progress = Callable[[int, int], None]
"""Takes (done, total)."""

Method = Callable[[Sequence[ScannedClip], int, Progress], Localizer]
"""Takes clips to train on, real ones among them, and a seed. Raises ValueError where these do not suffice."""


def by_segments(segments: Segments, frames: int) -> NDArray[np.float64]:
    """Score frames by segments alone: the best score of those that hold a frame, 0 where none does, [T]."""
    scores = np.zeros(frames)
    for first, end, score in segments:
        inside = slice(int(np.ceil(max(0.0, first))), int(np.ceil(min(end, frames))))
        scores[inside] = np.maximum(scores[inside], score)
    return scores


TIOUS = tuple(percent / 100 for percent in range(50, 100, 5))
"""the thresholds of tIoU that `ap` and the recalls are means over"""


def segment_figures(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> dict[str, float]:
    """Return the figures that the papers' tables have, by name; `frame_auc` needs the frames' scores.

    ap is the mean of `ap_at` over `TIOUS`. ar_K is the mean over them of the recall where each video keeps
    its K best, over the true segments of all videos alike. ar_share_K is the same as ActivityNet's proposal
    code and the paper count it: of N predictions in all, V videos having a true segment, a video keeps
    int(n · K · V / N) of its n. That is none at all for a video that has few beside others that have many.
    All are nan where no video has a true segment.
    """
    videos = overlaps(predicted, truth)
    with_truth = sum(video.tiou.shape[1] > 0 for video in videos)
    total = max(1, sum(len(video.scores) for video in videos))
    return {
        **{f"ap_{threshold:g}": ap_at(predicted, truth, threshold) for threshold in (0.5, 0.75, 0.9)},
        "ap": float(np.mean([ap_at(predicted, truth, threshold) for threshold in TIOUS])),
        **{f"ar_{most}": _recall(videos, [most] * len(videos)) for most in (2, 5)},
        **{
            f"ar_share_{most}": _recall(
                videos, [len(video.scores) * most * with_truth // total for video in videos]
            )
            for most in (2, 5)
        },
    }


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
        for first, end in checked_segments(segments, 2):
            if not 0 <= first < end <= len(score):
                raise ValueError(
                    f"a true segment from {first:g} to {end:g} is not within {len(score)} frames"
                )
            inside[int(first) : int(end)] = True
        forged.append(score[inside])
        other.append(score[~inside])
    return auroc(np.concatenate(forged), np.concatenate(other))


def _recall(videos: Sequence[Overlaps], kept: Sequence[int]) -> float:
    """Return the mean over `TIOUS` of the recall where each video keeps so many of its best."""
    best = [video.tiou[:most].max(0, initial=0) for video, most in zip(videos, kept, strict=True)]
    overlap = np.concatenate([np.zeros(0), *best])
    if not len(overlap):
        return math.nan
    return float(np.mean([reaches(overlap, threshold).mean() for threshold in TIOUS]))
