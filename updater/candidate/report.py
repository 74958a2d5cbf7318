"""The evidence that an operator approves by: evaluation.json, the same for the eye, and the model card."""

import math
from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Any

from detector.release.manifest import NO_BACKBONE
from memory.records import REAL
from updater.candidate.outlook import TEMPLATES
from updater.evaluation_parts import Measure
from updater.records import Evaluation, Robustness

_MISTAKEN_SHOWN = 5


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


def under_half(robustness: Robustness | None) -> list[tuple[str, str, float]]:
    """Return each distortion and class of which less than half is right, with that share; the worst first."""
    steps = robustness.distorted if robustness else {}
    weak = [(step, name, share) for step, of in steps.items() for name, share in of.items() if share < 0.5]
    return sorted(weak, key=lambda row: (row[1] != REAL, row[2]))


def _mean(values: list[float]) -> float:
    return fmean(values) if values else math.nan


TEMPLATES.globals.update(accuracy=accuracy, under_distortions=under_distortions, under_half=under_half)


def evaluation_markdown(evaluation: Evaluation) -> str:
    """The evaluation as a page: the gates, then the calls of each class before and after."""
    return TEMPLATES.get_template("evaluation.md.j2").render(_page_values(evaluation))


def model_card(evaluation: Evaluation) -> str:
    """The card of a model: its users, training data, figures and limits."""
    classes, confusion = evaluation.after.classes, evaluation.after.confusion or {}
    mistaken = [
        (count / sum(called.values()), count, sum(called.values()), family, name)
        for family, called in confusion.items()
        for name, count in called.items()
        if name != family
    ]
    weakest = min(
        (name for name in evaluation.classes if name not in (REAL, *evaluation.carried)),
        key=lambda name: classes[name].named,
    )
    return TEMPLATES.get_template("model_card.md.j2").render(
        _page_values(evaluation),
        bare=evaluation.backbone == NO_BACKBONE,
        mistaken=sorted(mistaken, reverse=True)[:_MISTAKEN_SHOWN],
        weakest=weakest,
    )


def _page_values(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "of": evaluation,
        "shown": [name for name in evaluation.classes if name not in evaluation.carried],
        "findings": [gate for gate in evaluation.gates if not gate.holds],
        "distortions": accuracies(evaluation),
    }


def accuracies(evaluation: Evaluation) -> dict[str, dict[str, str]]:
    """Return the accuracy in % by distortion, then level; before → after of the classes of before."""
    now, before = evaluation.after.robustness, evaluation.before and evaluation.before.robustness
    old = [name for name in evaluation.classes if name not in evaluation.new] if before else None
    cells: dict[str, dict[str, str]] = {}
    for step, right in now.distorted.items() if now else ():
        name, _, level = step.partition(":")
        earlier = before.distorted.get(step) if before else None
        change = f"{100 * accuracy(earlier, old):.1f} → " if earlier else ""
        cells.setdefault(name, {})[level] = f"{change}{100 * accuracy(right, old):.1f}"
    return cells
