"""An evaluation in six figures, to be compared over releases and over time. Pure."""

import math
from statistics import fmean
from typing import Literal

from memory.records import REAL
from updater.records import Evaluation

Measure = Literal["aa", "af", "power", "unseen_auc", "reals_unknown", "reals_fake"]
"""aa: average accuracy, the mean over the release's classes of the share that got its very name. af: average
forgetting, the mean over the families that the release before knew of the change of that share; negative
means forgotten (as in updater.measures). power: the share of a family never seen that would not be called
real, as each known family left out once has it. unseen_auc: chance that a pseudo-forgery of held-back media
seems less familiar than an item of a familiar class. reals_unknown, reals_fake: shares of the held-back
reals."""


def figures(evaluation: Evaluation) -> dict[Measure, float]:
    """The measures of a candidate, fractions in 0..1 (af: -1..1), without those that it does not have."""
    after = evaluation.after.classes
    before = {} if evaluation.before is None else evaluation.before.classes
    known = [name for name in evaluation.classes if name in after]
    old = [name for name in known if name != REAL and name in before and name not in evaluation.new]
    values: dict[Measure, float] = {
        "aa": _mean([after[name].named for name in known]),
        "af": _mean([after[name].named - before[name].named for name in old]),
        "unseen_auc": evaluation.after.rejection_auroc,
        "power": evaluation.after.power.share if evaluation.after.power else math.nan,
    }
    if REAL in after:
        values |= {"reals_unknown": after[REAL].unknown, "reals_fake": after[REAL].fake}
    return {measure: value for measure, value in values.items() if math.isfinite(value)}


def _mean(values: list[float]) -> float:
    return fmean(values) if values else math.nan
