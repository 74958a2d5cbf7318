"""A candidate on its way to an artifact: a table of stages, which one loop runs and resumes.

A stage is done when its file is in place. So a successor on the same disk goes on behind the last stage that
was finished, and inside training behind the last checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel

from detector.model.experts import WithExperts, export_with_experts
from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.release.artifact import (
    EVALUATION,
    EVALUATION_PAGE,
    MODEL,
    MODEL_CARD,
    PROBE,
    REFERENCE,
    SNAPSHOT,
    STATISTICS,
    WEIGHTS,
    Artifact,
    seal,
)
from detector.release.contract import crops_and_pooling, picture_and_pooling
from detector.release.crop_graphs import MapContract
from detector.release.manifest import ReferenceEntry
from detector.release.tensors import write_probe
from detector.serving.session import Session, open_session
from ingest.durable import rename_durably, write_durably
from memory.records import REAL
from updater.candidate.calibrate import calibrate
from updater.candidate.distributed import learn
from updater.candidate.draft import FILES, Calibrated, Draft, Exported, Scanned
from updater.candidate.evaluate import GatedModel, batch, performance_of, spread
from updater.candidate.gate_evidence import behind_gates, flips, forgetting, real_groups
from updater.candidate.gate_inputs import output_of
from updater.candidate.gates import make_gates
from updater.candidate.left_out import first_sight, left_out_odds, part_of
from updater.candidate.localized import build_localizer
from updater.candidate.plan import head_of, live_calls
from updater.candidate.power import measure_power
from updater.candidate.report import evaluation_markdown, model_card
from updater.candidate.robustness import measure_robustness
from updater.candidate.scanned import build_scanner
from updater.candidate.snapshot import made_of, pack_rows, snapshot_rows
from updater.experts.calibrate import calibrated_experts
from updater.metrics import time_stage
from updater.outliers.exposure import expose
from updater.records import Evaluation, Power, RealsMarked
from updater.training import discriminant, step
from updater.training.discriminant import tensors_of

PROBE_ITEMS = 4
PROOF_ITEMS = 24


def train_network(draft: Draft) -> None:
    """Train the network."""
    plan, weights = draft.plan_with_features, draft.artifact / WEIGHTS
    if not weights.is_file():
        parent, previous = plan.parent, None
        if parent is not None:
            kept = {} if parent.statistics is None else tensors_of(parent.statistics)
            previous = step.TrainedModel(parent.network, parent.artifact.manifest.classes, kept)
        trained = (discriminant.learn if plan.architecture.frozen else learn)(
            step.Step(
                train=plan.splits.train,
                classes=plan.classes,
                architecture=plan.architecture,
                previous=previous,
                recipe=plan.recipe,
                without=plan.without,
                seed=plan.seed,
                device=plan.device,
                checkpoint=draft.root / "checkpoint.safetensors",
                start_from=plan.start_from,
                progress=draft.progress,
            )
        )
        if plan.architecture.frozen:
            draft.keep(trained.kept, draft.artifact / STATISTICS)
        draft.keep(trained.network.state_dict(), weights)


def calibrate_gate(draft: Draft) -> Calibrated:
    """Fit the gate and the reference set."""
    plan, parent = draft.plan_with_features, draft.plan_with_features.parent
    held, experts, odds = plan.splits.calibration, None, None
    if plan.architecture.frozen:
        train, calibration = (
            part_of(draft.network, items, plan.device, draft.progress) for items in (plan.splits.train, held)
        )
        odds = left_out_odds(train, calibration, None if parent is None else parent.statistics)
    if plan.experts:
        logits = output_of(draft.network, held, plan.device, "share of the experts", draft.progress).logits
        contracts = [expert.contract for expert in plan.experts]
        experts = calibrated_experts(contracts, held, logits, plan.classes, odds=odds and odds[1])
    gate, reference, figures = calibrate(
        draft.network,
        plan.splits.train,
        held,
        plan.classes,
        device=plan.device,
        experts=experts,
        live=live_calls(plan, draft.progress),
        foreign=None if parent is None else parent.reference,
        reference_rows=plan.reference_rows,
        progress=draft.progress,
    )
    if odds is not None:
        live = None if parent is None else parent.artifact.manifest.gate.first_sight
        found = first_sight((plan.splits.train, held), odds, live, plan.reals_lost, experts)
        gate = gate.model_copy(update={"first_sight": found})
    entries: tuple[ReferenceEntry, ...] = ()
    if reference is not None:
        aside = draft.root / REFERENCE
        reference.save(aside)
        rename_durably(aside, draft.artifact / REFERENCE)
        pairs = zip(reference.ids, reference.families, strict=True)
        entries = tuple(ReferenceEntry(exemplar=item, family=family) for item, family in pairs)
    carried = () if experts is None else experts.experts
    return Calibrated(gate=gate, reference=entries, figures=figures, experts=carried)


def export_graph(draft: Draft) -> Exported:
    """Export the graph, prove it equal, and write the probe. Raises detector.model.export.ExportError."""
    plan = draft.plan
    draft.progress("export", 0, 1)
    left, files = draft.stage_result(Calibrated), {one.contract.name: one.path for one in plan.experts}
    graph = DetectorGraph(draft.network, left.gate, draft.reference, left.experts)
    aside, model, probe = draft.root / MODEL, draft.artifact / MODEL, draft.root / PROBE
    shown = () if plan.picture_plan is None else picture_and_pooling(plan.picture_plan)
    inputs = (*crops_and_pooling(plan.crop_plan), *shown)
    contract = export_with_experts(graph, inputs, files, aside) if files else export(graph, inputs, aside)
    some = spread(plan.splits.calibration, PROOF_ITEMS)
    few = some.take(range(min(PROBE_ITEMS, len(some))))
    asked = WithExperts(graph, files) if files else graph
    worst = prove_equal(asked, aside, contract, [batch(some), batch(few), batch(few.take([0]))])
    rename_durably(aside, model)
    request = batch(few)
    write_probe(probe, request, Session(model, contract, threads=1).score(request))
    rename_durably(probe, draft.artifact / PROBE)
    return Exported(contract=contract, differences=worst)


PSEUDO_ITEMS = 400
PSEUDO_SEED = 1_000_003
"""Added to the update's seed, so that held-back pseudo-forgeries are other draws than the trained ones."""


def evaluate_candidate(draft: Draft) -> Evaluation:
    """Measure the candidate that was drafted, and write what the operator reads beside it."""
    plan, progress = draft.plan, draft.progress
    calibrated, exported = draft.stage_result(Calibrated), draft.stage_result(Exported)
    localizer, scanner = draft.optional_stage_result(MapContract), draft.optional_stage_result(Scanned)
    test = plan.splits.test
    count, seed = min(len(test), PSEUDO_ITEMS), plan.seed + PSEUDO_SEED
    pseudo = expose(test, count, plan.without, seed, partial(progress, "held-back pseudo-forgeries"))
    parent = plan.parent.artifact if plan.parent else None
    familiar = frozenset(parent.manifest.classes if parent else plan.classes)
    # On one thread each, for several batches are judged beside one another.
    session = Session(draft.artifact / MODEL, exported.contract, threads=1)
    candidate = GatedModel(session, calibrated.gate, plan.classes)
    calls = candidate.calls(test, partial(progress, "evaluate candidate"))
    of_pseudo = candidate.calls(pseudo)
    after = performance_of(test, calls, of_pseudo, familiar)
    live = of_live = before = None
    if plan.parent is not None and parent is not None:
        served = open_session(parent, threads=1)
        live = GatedModel(served, parent.manifest.gate, parent.manifest.classes, head_of(plan.parent))
        of_live = live.calls(test, partial(progress, "evaluate live"), calls.features)
        before = performance_of(test, of_live, live.calls(pseudo, features=of_pseudo.features), familiar)
    robust, robust_before = measure_robustness(
        candidate, live, test, plan.seed, partial(progress, "evaluate under distortions")
    )
    after = after.model_copy(update={"power": draft.optional_stage_result(Power), "robustness": robust})
    if before is not None and parent is not None:
        before = before.model_copy(update={"power": _power_of(parent), "robustness": robust_before})
    old, rows = tuple(name for name in plan.classes[1:] if name not in plan.new), snapshot_rows(plan.splits)
    if rows is not None:
        write_durably(draft.artifact / SNAPSHOT, pack_rows(rows))
    evaluation = Evaluation(
        update=draft.update,
        parent=parent.digest if parent else None,
        backbone=plan.architecture.backbone,
        begun_with=plan.start_from and plan.start_from.description,
        experts=tuple(expert.description for expert in calibrated.experts),
        seed=plan.seed,
        without_kinds=tuple(sorted(plan.without)),
        classes=plan.classes,
        new=plan.new,
        waiting=plan.waiting,
        items={split: getattr(plan.splits, split).counts() for split in ("train", "calibration", "test")},
        carried=tuple(name for name in old if name not in test.families),
        resting=plan.splits.resting,
        pseudo_forgeries=len(pseudo),
        before=before,
        after=after,
        scanner=scanner and scanner.found,
        calibration=calibrated.figures,
        export_differences=exported.differences,
        gates=(),
        sources=calibrated.gate.sources,
        reals_marked=localizer and RealsMarked(share=localizer.reals_marked, reals=localizer.reals),
        real_groups=real_groups(plan.splits),
        forgotten=forgetting(test, of_live, calls, old),
        flips=flips(test, of_live, calls, (REAL, *old)),
        made_of=None if rows is None else made_of(rows),
        behind=behind_gates(test, of_live, calls, plan.new, old),
    )
    evaluation = evaluation.model_copy(update={"gates": make_gates(draft.settings, evaluation)})
    write_durably(draft.artifact / EVALUATION_PAGE, evaluation_markdown(evaluation).encode())
    write_durably(draft.artifact / MODEL_CARD, model_card(evaluation).encode())
    return evaluation


def _power_of(release: Artifact) -> Power | None:
    """Return the power that a release was measured at; None where its evaluation does not say."""
    return Evaluation.model_validate_json((release.folder / EVALUATION).read_bytes()).after.power


@dataclass(frozen=True)
class Stage:
    """A stage of the way."""

    name: str
    """as its duration is called in the metrics"""
    file: str
    """in the run's folder, put there last: what `make` returns, as JSON"""
    make: Callable[[Draft], BaseModel | None]
    """what is done; returns what a later stage or run reads, None where that is nothing"""


STAGES = (
    Stage("learn", "learnt.json", train_network),
    Stage("calibrate", FILES[Calibrated], calibrate_gate),
    Stage(
        "power",
        FILES[Power],
        lambda draft: measure_power(draft.plan_with_features, draft.network, draft.progress),
    ),
    Stage("export", FILES[Exported], export_graph),
    Stage(
        "localize",
        FILES[MapContract],
        lambda draft: build_localizer(draft.plan, draft.artifact, draft.progress),
    ),
    Stage("scan", FILES[Scanned], lambda draft: build_scanner(draft.plan, draft.artifact, draft.progress)),
    Stage("evaluate", f"artifact/{EVALUATION}", evaluate_candidate),
)


def build(draft: Draft, stages: Sequence[Stage] = STAGES) -> None:
    """Do what is not done yet of these stages, in their order."""
    for stage in stages:
        path = draft.root / stage.file
        with time_stage(stage.name):
            if not path.is_file():
                record = stage.make(draft)
                write_durably(path, b"null" if record is None else record.model_dump_json(indent=1).encode())


def seal_artifact(draft: Draft) -> Artifact:
    """Write the manifest over all that lies in the artifact, once all stages are done."""
    scanner = draft.optional_stage_result(Scanned)
    graphs = {"localizer": draft.optional_stage_result(MapContract), "scanner": scanner and scanner.contract}
    return seal(draft.artifact, draft.manifest().model_copy(update=graphs))
