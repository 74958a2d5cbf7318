"""An evaluation in seven figures, to be compared over releases and over time. Pure."""

import math
from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Literal

from memory.records import REAL
from updater.records import Evaluation, Robustness

Measure = Literal["aa", "af", "power", "robustness", "unseen_auc", "reals_unknown", "reals_fake"]
"""aa: average accuracy, the mean over the release's classes of the share that got its very name. af: average
forgetting, the mean over the families that the release before knew of the change of that share; negative
means forgotten (as in updater.measures). power: the share of a family never seen that would not be called
real, as each known family left out once has it. robustness: the accuracy under distortions, where saying the
same of everything has 0.5. unseen_auc: chance that a pseudo-forgery of held-back media seems less familiar
than an item of a familiar class. reals_unknown, reals_fake: shares of the held-back reals."""


def figures(evaluation: Evaluation) -> dict[Measure, float]:
    """The measures of a candidate, fractions in 0..1 (af: -1..1), without those that it does not have."""
    after = evaluation.after.classes
    before = {} if evaluation.before is None else evaluation.before.classes
    known = [name for name in evaluation.classes if name in after]
    old = [name for name in known if name != REAL and name in before and name not in evaluation.new]
    robustness = evaluation.after.robustness
    values: dict[Measure, float] = {
        "aa": _mean([after[name].named for name in known]),
        "af": _mean([after[name].named - before[name].named for name in old]),
        "unseen_auc": evaluation.after.rejection_auroc,
        "power": evaluation.after.power.share if evaluation.after.power else math.nan,
        "robustness": under_distortions(robustness) if robustness else math.nan,
    }
    if REAL in after:
        values |= {"reals_unknown": after[REAL].unknown, "reals_fake": after[REAL].fake}
    return {measure: value for measure, value in values.items() if math.isfinite(value)}


def accuracy(right: Mapping[str, float], families: Collection[str] | None = None) -> float:
    """Return the mean of the share of reals that is right and of the mean of the families' shares.

    right: by class, 0..1. families: those that count, all where none are given. Not a number where reals or
    families were not measured; 0.5 for whoever says the same of everything.
    """
    counted = [share for name, share in right.items() if name != REAL and (not families or name in families)]
    return (right.get(REAL, math.nan) + _mean(counted)) / 2


def under_distortions(robustness: Robustness, families: Collection[str] | None = None) -> float:
    """Return the mean accuracy over the distortions and levels that were measured."""
    return _mean([accuracy(right, families) for right in robustness.distorted.values()])


def _mean(values: list[float]) -> float:
    return fmean(values) if values else math.nan
