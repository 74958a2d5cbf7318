"""The model card of a candidate: what it is for, what it was made from, how it does, what it does not do."""

from detector.release.manifest import NO_BACKBONE
from memory.records import REAL
from updater.candidate.findings import findings_markdown
from updater.candidate.outlook import thresholds_rest_on
from updater.candidate.report import (
    distortions_table,
    release_name,
    said_of_maps,
    said_of_power,
    said_of_robustness,
    said_of_scanner,
)
from updater.candidate.source_thresholds import said_of_sources
from updater.records import Evaluation

_MISTAKEN_SHOWN = 5


def model_card(evaluation: Evaluation) -> str:
    """Who the model is for, what it was trained on, how well it does, and what it does not do."""
    new = ", ".join(evaluation.new) or "none"
    left_out = ", ".join(evaluation.without_kinds) or "none"
    weakest = min(
        (name for name in evaluation.classes if name not in (REAL, *evaluation.carried)),
        key=lambda name: evaluation.after.classes[name].named,
    )
    share = evaluation.after.classes[weakest]
    bare = evaluation.backbone == NO_BACKBONE
    backbone = "Forensic features alone" if bare else f"Network `{evaluation.backbone}`"
    learner = "by linear discriminants" if bare else "by softmax with rehearsal and distillation"
    experts = "".join(f"\nIt carries the expert {one}." for one in evaluation.experts)
    begun = f"\nIt began with weights of {evaluation.begun_with}." if evaluation.begun_with else ""
    distortions = "\n".join(["", *distortions_table(evaluation), ""]) if evaluation.after.robustness else ""
    shown = (name for name in evaluation.classes if name not in evaluation.carried)
    table = "\n".join(_card_row(name, evaluation) for name in shown)
    listed = findings_markdown(evaluation.gates)
    findings = "\n".join(["It was proposed with these:", "", *listed]) if listed else "None: all gates hold."
    groups = evaluation.real_groups
    rest_on = thresholds_rest_on(groups) if groups else "On how many reals they rest was not kept."
    return f"""# Model card: candidate of update {evaluation.update}

**Use.** Says of an image or a video whether it is real, a fake of a known family, or unknown.
It gives evidence for a person's decision, and is no proof.

**Made from.** {backbone}, learnt from {release_name(evaluation.parent)}, {learner};
seed {evaluation.seed}.{begun}{experts}
Kinds of forging left out of the pseudo-forgeries: {left_out}.

**Classes.** {", ".join(evaluation.classes)}. New: {new}.

| class | train | calibration | held back | named, % | called unknown, % |
|---|---:|---:|---:|---:|---:|
{table}

**Mistaken most often.** {_said_of_confusion(evaluation)}

**Findings.** {findings}

**Thresholds.** {rest_on}

**Unseen forgeries.** {said_of_power(evaluation)}

**Sources.** {said_of_sources(evaluation.sources)}

**Distorted media.** {said_of_robustness(evaluation)}
{distortions}
**Maps.** {said_of_maps(evaluation)}

**When a video is forged.** {said_of_scanner(evaluation)}

**Limits.** The family that it names worst is {weakest}: {100 * share.named:.0f} % of {share.items}
held-back items. Media of cameras and software that are not among the exemplars may be called unknown
though they are real. A forgery that leaves the traces of a known family is given that family's name.
The figures are of held-back items from the same sources as the training items: on other sources
expect less.
"""


def _said_of_confusion(evaluation: Evaluation) -> str:
    """The largest cells off the diagonal of the confusion matrix."""
    if evaluation.after.confusion is None:
        return "What was mistaken for what was not kept."
    mistaken = [
        (count / sum(called.values()), count, sum(called.values()), what, name)
        for what, called in evaluation.after.confusion.items()
        for name, count in called.items()
        if name != what
    ]
    listed = [
        f"{what} called {name}: {count} of {of}"
        for _, count, of, what, name in sorted(mistaken, reverse=True)[:_MISTAKEN_SHOWN]
    ]
    return f"{'; '.join(listed)}." if listed else "No held-back item got another name than its own."


def _card_row(name: str, evaluation: Evaluation) -> str:
    counts = " | ".join(
        str(evaluation.items[split].get(name, 0)) for split in ("train", "calibration", "test")
    )
    after = evaluation.after.classes[name]
    return f"| {name} | {counts} | {100 * after.named:.1f} | {100 * after.unknown:.1f} |"
