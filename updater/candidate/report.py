"""The evidence that an operator approves by: evaluation.json, the same for the eye, and the model card."""

import math
from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from detector.release.manifest import NO_BACKBONE
from memory.records import REAL
from updater.candidate.findings import findings_markdown
from updater.candidate.outlook import thresholds_rest_on
from updater.candidate.source_thresholds import said_of_sources
from updater.evaluation_parts import Measure
from updater.records import Evaluation, Robustness, ScannerFound

_MISTAKEN_SHOWN = 5
_PAGES = Environment(
    loader=PackageLoader("updater.candidate", "."),
    autoescape=False,  # noqa: S701 - Markdown
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


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
    found = [(step, name, share) for step, of in steps.items() for name, share in of.items() if share < 0.5]
    return sorted(found, key=lambda one: (one[1] != REAL, one[2]))


def _mean(values: list[float]) -> float:
    return fmean(values) if values else math.nan


def evaluation_markdown(evaluation: Evaluation) -> str:
    """The evaluation as a page: the gates, then what each class was called before and after."""
    return _PAGES.get_template("evaluation.md.j2").render(_told(evaluation))


def model_card(evaluation: Evaluation) -> str:
    """Who the model is for, what it was trained on, how well it does, and what it does not do."""
    classes, confusion = evaluation.after.classes, evaluation.after.confusion or {}
    mistaken = [
        (count / sum(called.values()), count, sum(called.values()), what, name)
        for what, called in confusion.items()
        for name, count in called.items()
        if name != what
    ]
    weakest = min(
        (name for name in evaluation.classes if name not in (REAL, *evaluation.carried)),
        key=lambda name: classes[name].named,
    )
    return _PAGES.get_template("model_card.md.j2").render(
        _told(evaluation),
        bare=evaluation.backbone == NO_BACKBONE,
        mistaken=sorted(mistaken, reverse=True)[:_MISTAKEN_SHOWN],
        weakest=weakest,
        thresholds_rest_on=thresholds_rest_on,
    )


def _told(evaluation: Evaluation) -> dict[str, Any]:
    """Return what both pages are made from."""
    return {
        "of": evaluation,
        "shown": [name for name in evaluation.classes if name not in evaluation.carried],
        "findings": findings_markdown(evaluation.gates),
        "distortions": distortions_table(evaluation),
        "release_name": release_name,
        "said": {
            "power": said_of_power(evaluation),
            "sources": said_of_sources(evaluation.sources),
            "robustness": said_of_robustness(evaluation),
            "maps": said_of_maps(evaluation),
            "scanner": said_of_scanner(evaluation),
        },
    }


def said_of_power(evaluation: Evaluation) -> str:
    """What may be expected of a family that the release has never seen, in one sentence."""
    power = evaluation.after.power
    if power is None:
        return (
            "What it would make of a family that it has never seen was not measured: that takes two families,"
            " of which one can be left out."
        )
    low, share, high = (round(100 * value) for value in (power.low, power.share, power.high))
    return (
        f"Of a family that it has never seen, about {share} % [{low} to {high}] would not be called real, at"
        f" these thresholds: each of its {len(power.families)} families was left out once."
    )


def said_of_robustness(evaluation: Evaluation) -> str:
    """What distortions cost, or that it was not measured."""
    found = evaluation.after.robustness
    if found is None:
        return "What distortions cost was not measured."
    under, plain = 100 * under_distortions(found), 100 * accuracy(found.undistorted)
    count, lost = sum(found.items.values()), found.lost
    worst = "; ".join(
        f"{name} under {step} {100 * share:.0f} %" for step, name, share in under_half(found)[:5]
    )
    fails = f" It fails at these, the share that is right: {worst}." if worst else ""
    against = (
        f" Against the live release, on the classes that both know, it fell by {100 * lost.share:.1f} points"
        f" [{100 * lost.low:.1f} to {100 * lost.high:.1f}, 95 % confidence in either end] on"
        f" {lost.reals} real and {lost.forgeries} forged items."
        if lost
        else ""
    )
    return (
        f"Under DeeperForensics' seven distortions at levels 1 and 3 its accuracy is {under:.1f} % on"
        f" average, and on the same {count} held-back items undistorted {plain:.1f} %; 50 % is chance. It is"
        " the mean of the share of reals called real and of the share of forgeries called fake or unknown."
        f"{against}{fails} An item is at most two of its crops here."
    )


def said_of_maps(evaluation: Evaluation) -> str:
    """How often a real picture is marked in part, or that there are no maps."""
    found = evaluation.reals_marked
    if found is None:
        return "It does not say where a picture is forged."
    return (
        f"Its maps mark {100 * found.share:.1f} % of {found.reals} real pictures, on more than 2 %"
        " of their cells; nothing was fitted on these."
    )


def said_of_scanner(evaluation: Evaluation) -> str:
    """How well it says when a video is forged, or that it does not."""
    found = evaluation.scanner
    if found is None:
        return "It does not say when a video is forged: it has no scanner."
    return (
        f"Of {found.reals} real clips, simulated from held-back real pictures, a forged stretch is told in"
        f" {100 * found.reals_told:.1f} %. Of the {found.stretches} stretches of {found.forged} such clips"
        f" with pseudo-forgeries, {100 * found.found:.1f} % are told with a tIoU of at least 0.5, and ap_0.5"
        f" is {found.ap_50:.3f}. {_said_of_library(found)} Videos of cameras, and forgeries of software, may"
        " fare otherwise."
    )


def _said_of_library(found: ScannerFound) -> str:
    """On how many real videos of the library it was trained, calibrated and tested, and how it did there."""
    threshold = (
        f"its threshold was set on {found.held_library} real videos too, of which at most 5 % are told"
        if found.held_library
        else "its threshold was set on simulated clips alone, for too few real videos were held back"
    )
    said = f"It learnt from {found.learnt_library} clips of real videos of the library, and {threshold}."
    if (of := found.library) is None:
        return f"{said} No real video was left to test it on."
    return (
        f"{said} Of {of.reals} real videos of the test split, a stretch is told in"
        f" {100 * of.reals_told:.1f} %; of {of.stretches} pseudo-forged stretches in them"
        f" {100 * of.found:.1f} % are told."
    )


def distortions_table(evaluation: Evaluation) -> list[str]:
    """Return a table: accuracy in % by distortion and level; before → after of the classes of before."""
    found = evaluation.after.robustness
    if found is None:
        return []
    before = evaluation.before.robustness if evaluation.before else None
    old = [name for name in evaluation.classes if name not in evaluation.new] if before else None
    names = list(dict.fromkeys(step.partition(":")[0] for step in found.distorted))
    levels = list(dict.fromkeys(step.partition(":")[2] for step in found.distorted))

    def cell(step: str) -> str:
        earlier = before.distorted.get(step) if before else None
        told = f"{100 * accuracy(earlier, old):.1f} → " if earlier else ""
        return f"{told}{100 * accuracy(found.distorted[step], old):.1f}"

    return [
        "| accuracy, % | " + " | ".join(f"level {level}" for level in levels) + " |",
        "|---|" + "---:|" * len(levels),
        *(f"| {name} | " + " | ".join(cell(f"{name}:{level}") for level in levels) + " |" for name in names),
    ]


def release_name(digest: str | None) -> str:
    """Return how a release is called in a text; None is that nothing was live."""
    return "nothing, it is the first" if digest is None else f"release {digest[:12]}"
