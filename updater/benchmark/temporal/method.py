"""What a method that finds forged stretches is: trained on clips, it answers for each clip's features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.looks.scan_look import Segments
from updater.scan.clips import ScannedClip


@dataclass(frozen=True)
class Answer:
    """What is said of one clip of T frames."""

    frame_scores: NDArray[np.float64]
    """[T] in 0..1, 1 for forged"""
    segments: Segments
    """[n, 3] of (first, end, score), half open, in frames; at most ten, the best first"""


Localizer = Callable[[NDArray[np.float32]], Answer]
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
