"""The evidence of a candidate: it and the live release on the same held-back items, and the gates of that."""

from functools import partial

from detector.release.artifact import EVALUATION, EVALUATION_PAGE, MODEL, MODEL_CARD, Artifact
from detector.release.crop_graphs import MapContract
from detector.serving.session import Session, open_session
from ingest.durable import write_durably
from updater.candidate.draft import Calibrated, Draft, Exported, Scanned
from updater.candidate.evaluate import judge
from updater.candidate.gates import make_gates
from updater.candidate.report import evaluation_markdown, model_card
from updater.candidate.robustness import Judge, measure_robustness
from updater.outliers.exposure import expose
from updater.records import Evaluation, Power, RealsMarked

PSEUDO_ITEMS = 400
PSEUDO_SEED = 1_000_003
"""Added to the update's seed, so that held-back pseudo-forgeries are other draws than the trained ones."""


def evaluated(draft: Draft) -> Evaluation:
    """Measure the candidate that was drafted, and write what the operator reads beside it."""
    plan, progress = draft.plan, draft.progress
    calibrated, exported = draft.left(Calibrated), draft.left(Exported)
    localizer, scanner = draft.left_by(MapContract), draft.left_by(Scanned)
    test = plan.splits.test
    pseudo = expose(
        test,
        min(len(test), PSEUDO_ITEMS),
        plan.without,
        plan.seed + PSEUDO_SEED,
        partial(progress, "held-back pseudo-forgeries"),
    )
    parent = plan.parent.artifact if plan.parent else None
    familiar = frozenset(parent.manifest.classes if parent else plan.classes)
    # On one thread each, for several batches are judged beside one another.
    candidate = Judge(
        Session(draft.artifact / MODEL, exported.contract, threads=1), calibrated.gate, plan.classes
    )
    live = before = None
    if parent is not None:
        live = Judge(open_session(parent, threads=1), parent.manifest.gate, parent.manifest.classes)
        known, forged = (live.shown(one) for one in (test, pseudo))
        seen = partial(progress, "evaluate live")
        before = judge(live.session, live.gate, live.classes, known, forged, familiar, seen)
    seen = partial(progress, "evaluate candidate")
    after = judge(candidate.session, candidate.gate, plan.classes, test, pseudo, familiar, seen)
    seen = partial(progress, "evaluate under distortions")
    robust, of_live = measure_robustness(candidate, live, test, plan.seed, seen)
    after = after.model_copy(update={"power": draft.left_by(Power), "robustness": robust})
    if before is not None and parent is not None:
        before = before.model_copy(update={"power": _power_of(parent), "robustness": of_live})
    evaluation = Evaluation(
        update=draft.update,
        parent=parent.digest if parent else None,
        backbone=plan.architecture.backbone,
        begun_with=plan.start_from and plan.start_from.described,
        picture=plan.architecture.picture and plan.architecture.picture.weights,
        seed=plan.seed,
        without_kinds=tuple(sorted(plan.without)),
        classes=plan.classes,
        new=plan.new,
        waiting=plan.waiting,
        items={split: getattr(plan.splits, split).counts() for split in ("train", "calibration", "test")},
        resting=plan.splits.resting,
        pseudo_forgeries=len(pseudo),
        before=before,
        after=after,
        scanner=scanner and scanner.found,
        calibration=calibrated.figures,
        export_differences=exported.differences,
        gates=make_gates(draft.settings, plan.classes, plan.new, before, after),
        reals_marked=localizer and RealsMarked(share=localizer.reals_marked, reals=localizer.reals),
    )
    write_durably(draft.artifact / EVALUATION_PAGE, evaluation_markdown(evaluation).encode())
    write_durably(draft.artifact / MODEL_CARD, model_card(evaluation).encode())
    return evaluation


def _power_of(release: Artifact) -> Power | None:
    """Return the power that a release was measured at; None where its evaluation does not say."""
    return Evaluation.model_validate_json((release.folder / EVALUATION).read_bytes()).after.power
