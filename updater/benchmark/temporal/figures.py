"""The temporal task's figures, by their names in reports: of all videos, and of each family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detector.looks.scan_look import best_score
from updater.benchmark.temporal.method import Answer
from updater.measures import auroc
from updater.scan import measures
from updater.scan.clips import ScannedClip


@dataclass(frozen=True)
class Told:
    """A video with its truth and what a method says of it."""

    family: str
    clip: ScannedClip
    answer: Answer

    @property
    def is_forged(self) -> bool:
        """Whether any of its frames is."""
        return len(self.clip.segments) > 0


def figures(told: Sequence[Told]) -> dict[str, float]:
    """Return the figures of these videos, reals among them; nan where there is nothing to measure by.

    Beside the paper's: `frame_auc`, and how well the whole video is told, `clip_auc_mean` by the mean of its
    frames' scores and `clip_auc_best` by its best segment.
    """
    answers, truth = [one.answer for one in told], [one.clip.segments for one in told]
    forged = np.array([one.is_forged for one in told], bool)
    mean = np.array([one.frame_scores.mean() for one in answers])
    best = np.array([best_score(one.segments) for one in answers])
    return {
        **measures.figures([one.segments for one in answers], truth),
        "frame_auc": measures.frame_auc([one.frame_scores for one in answers], truth),
        "clip_auc_mean": auroc(mean[forged], mean[~forged]),
        "clip_auc_best": auroc(best[forged], best[~forged]),
    }


def by_family(told: Sequence[Told]) -> Mapping[str, dict[str, float]]:
    """Return the figures of each family's forged videos beside all reals."""
    reals = [one for one in told if not one.is_forged]
    families = sorted({one.family for one in told if one.is_forged})
    return {
        family: figures([*reals, *(one for one in told if one.is_forged and one.family == family)])
        for family in families
    }
