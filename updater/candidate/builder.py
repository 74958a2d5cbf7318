"""A candidate on its way from a plan to an artifact: `build` goes through the stages in their order.

    snapshot → plan → train → calibrate → export → evaluate → report → seal

A stage takes what earlier ones returned and returns a record, which the draft keeps. So a successor on the
same disk goes on behind the last stage that was finished, and inside training behind the last checkpoint. The
snapshot is `updater.data.training_data.load_splits`, the plan `make_plan`; `detector.release.artifact` seals.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from pydantic import BaseModel

from detector.model.export import WithExperts, export, export_with_experts, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
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
)
from detector.release.contract import crops_and_pooling, picture_and_pooling
from detector.release.crop_graphs import MapContract
from detector.release.manifest import Manifest, ProvenancePolicy, ReferenceEntry
from detector.release.tensors import write_probe
from detector.serving.session import Session
from ingest.durable import rename_durably, write_durably
from memory.records import REAL
from updater.candidate.calibrate import calibrate, calibration_figures
from updater.candidate.distributed import learn
from updater.candidate.draft import Calibrated, Draft, Exported, Scanned, make_manifest, stage
from updater.candidate.evaluate import GatedModel, batch, performance_of, spread
from updater.candidate.gate_evidence import behind_gates, flips, forgetting, real_groups
from updater.candidate.gate_inputs import Part, part_of
from updater.candidate.gates import make_gates
from updater.candidate.left_out import first_sight, left_out_odds
from updater.candidate.localized import build_localizer
from updater.candidate.plan import CandidatePlan, live_calls, live_model, load_network, reference_of
from updater.candidate.power import measure_power
from updater.candidate.report import evaluation_markdown, model_card
from updater.candidate.robustness import measure_robustness
from updater.candidate.scanned import build_scanner
from updater.candidate.snapshot import made_of, pack_rows, snapshot_rows
from updater.candidate.thresholds import LiveCalls
from updater.data.training_data import LabelledCrops
from updater.experts.look import with_expert_logits
from updater.outliers.exposure import expose
from updater.progress import Progress
from updater.records import Evaluation, Power, RealsMarked
from updater.settings import UpdaterSettings
from updater.training import discriminant, step
from updater.training.crop_rows import with_crop_features
from updater.training.discriminant import tensors_of

PROBE_ITEMS = 4
PROOF_ITEMS = 24


@dataclass(frozen=True)
class TrainedPlan:
    """A plan, its items ready to be learnt from, and its network's output for them: made when asked for."""

    plan: CandidatePlan
    weights: Path
    """file of the network, which is there once it was trained"""
    progress: Progress

    @cached_property
    def train(self) -> LabelledCrops:
        return self._prepare(self.plan.splits.train, "features")

    @cached_property
    def calibration(self) -> LabelledCrops:
        return self._prepare(self.plan.splits.calibration, "features held back")

    @cached_property
    def network(self) -> Network:
        """The trained network, on the plan's device."""
        plan = self.plan
        return load_network(self.weights, plan.architecture, plan.classes).to(plan.device)

    @cached_property
    def parts(self) -> tuple[Part, Part]:
        """The items to train and to calibrate on, with the network's output."""
        network, device = self.network, self.plan.device
        return (
            part_of(network, self.train, device, "reference", self.progress),
            part_of(network, self.calibration, device, "calibration", self.progress),
        )

    @cached_property
    def live(self) -> LiveCalls | None:
        """The live release's calls of the items to calibrate on; None where nothing is live."""
        return live_calls(self.plan.parent, self.calibration, self.plan.device, self.progress)

    def _prepare(self, items: LabelledCrops, stage: str) -> LabelledCrops:
        # Frozen features of whole items are the memory's, where it holds today's; else each crop's are made.
        plan = self.plan
        if plan.architecture.forensic and not (plan.architecture.frozen and items.features is not None):
            items = with_crop_features(items, plan.device, partial(self.progress, stage))
        return with_expert_logits(items, plan.experts, plan.expert_logits, self.progress)


def train_network(draft: Draft, plan: CandidatePlan) -> TrainedPlan:
    trained = TrainedPlan(plan, draft.artifact / WEIGHTS, draft.progress)
    _learn(draft, trained)
    return trained


@stage("learn", "learnt.json", BaseModel)
def _learn(draft: Draft, trained: TrainedPlan) -> None:
    plan = trained.plan
    if trained.weights.is_file():
        return
    parent, previous = plan.parent, None
    if parent is not None:
        kept = {} if parent.statistics is None else tensors_of(parent.statistics)
        previous = step.TrainedModel(parent.network, parent.artifact.manifest.classes, kept)
    model = (discriminant.learn if plan.architecture.frozen else learn)(
        step.Step(
            train=trained.train,
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
        draft.keep(model.kept, draft.artifact / STATISTICS)
    draft.keep(model.network.state_dict(), trained.weights)


@stage("calibrate", "calibrated.json", Calibrated)
def calibrate_gate(draft: Draft, trained: TrainedPlan) -> Calibrated:
    """Fit the gate and the reference set."""
    plan, parent, (train, held), odds = trained.plan, trained.plan.parent, trained.parts, None
    if plan.architecture.frozen:
        odds = left_out_odds(train, held, None if parent is None else parent.statistics)
    judge = calibrate(
        trained.network,
        train,
        held,
        plan.classes,
        experts=[expert.contract for expert in plan.experts],
        odds=odds and odds[1],
        live=trained.live,
        foreign=None if parent is None else parent.reference,
        reference_rows=plan.reference_rows,
    )
    gate, entries = judge.gate, tuple[ReferenceEntry, ...]()
    if odds is not None:
        live = None if parent is None else parent.artifact.manifest.gate.first_sight
        sight = first_sight((train.items, held.items), odds, live, plan.reals_lost, judge.experts)
        gate = gate.model_copy(update={"first_sight": sight})
    if judge.reference is not None:
        aside = draft.root / REFERENCE
        judge.reference.save(aside)
        rename_durably(aside, draft.artifact / REFERENCE)
        pairs = zip(judge.reference.ids, judge.reference.families, strict=True)
        entries = tuple(ReferenceEntry(exemplar=item, family=family) for item, family in pairs)
    carried = () if judge.experts is None else judge.experts.experts
    figures = calibration_figures(judge, held)
    return Calibrated(gate=gate, reference=entries, figures=figures, experts=carried)


@stage("power", "power.json", Power)
def leave_families_out(draft: Draft, trained: TrainedPlan) -> Power | None:
    """Measure the power; None where there are too few families."""
    return measure_power(trained.plan, trained.network, *trained.parts, trained.live, draft.progress)


@stage("export", "exported.json", Exported)
def export_graph(draft: Draft, trained: TrainedPlan, calibrated: Calibrated) -> Exported:
    """Export the graph, prove it equal, and write the probe. Raises detector.model.export.ExportError."""
    plan, files = trained.plan, {expert.contract.name: expert.path for expert in trained.plan.experts}
    draft.progress("export", 0, 1)
    reference = reference_of(draft.artifact, plan.architecture, calibrated.reference)
    graph = DetectorGraph(trained.network, calibrated.gate, reference, calibrated.experts)
    aside, model, probe = draft.root / MODEL, draft.artifact / MODEL, draft.root / PROBE
    picture_inputs = () if plan.picture_plan is None else picture_and_pooling(plan.picture_plan)
    inputs = (*crops_and_pooling(plan.crop_plan), *picture_inputs)
    contract = export_with_experts(graph, inputs, files, aside) if files else export(graph, inputs, aside)
    some = spread(plan.splits.calibration, PROOF_ITEMS)
    few = some.take(range(min(PROBE_ITEMS, len(some))))
    whole = WithExperts(graph, files) if files else graph
    worst = prove_equal(whole, aside, contract, [batch(some), batch(few), batch(few.take([0]))])
    rename_durably(aside, model)
    request = batch(few)
    write_probe(probe, request, Session(model, contract, threads=1).score(request))
    rename_durably(probe, draft.artifact / PROBE)
    return Exported(contract=contract, differences=worst)


PSEUDO_ITEMS = 400
PSEUDO_SEED = 1_000_003
"""Added to the update's seed, so that held-back pseudo-forgeries are other draws than the trained ones."""


@stage("evaluate", f"artifact/{EVALUATION}", Evaluation)
def evaluate_candidate(
    draft: Draft,
    plan: CandidatePlan,
    update: int,
    bounds: UpdaterSettings,
    calibrated: Calibrated,
    exported: Exported,
    power: Power | None,
    localizer: MapContract | None,
    scanner: Scanned | None,
) -> Evaluation:
    """Measure the candidate and the live release on held-back items; other arguments as of `build`."""
    test, progress = plan.splits.test, draft.progress
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
        live = live_model(plan.parent)
        of_live = live.calls(test, partial(progress, "evaluate live"), calls.features)
        before = performance_of(test, of_live, live.calls(pseudo, features=of_pseudo.features), familiar)
    robust, robust_before = measure_robustness(
        candidate, live, test, plan.seed, partial(progress, "evaluate under distortions")
    )
    after = after.model_copy(update={"power": power, "robustness": robust})
    if before is not None and parent is not None:
        before = before.model_copy(update={"power": _power_of(parent), "robustness": robust_before})
    old, rows = tuple(name for name in plan.classes[1:] if name not in plan.new), snapshot_rows(plan.splits)
    evaluation = Evaluation(
        update=update,
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
    return evaluation.model_copy(update={"gates": make_gates(bounds, evaluation)})


def _power_of(release: Artifact) -> Power | None:
    """Return the power that a release was measured at; None where its evaluation does not say."""
    return Evaluation.model_validate_json((release.folder / EVALUATION).read_bytes()).after.power


def write_report(draft: Draft, plan: CandidatePlan, evaluation: Evaluation) -> None:
    """Write the operator's pages beside the artifact, and its training snapshot."""
    rows = snapshot_rows(plan.splits)
    files = {
        EVALUATION_PAGE: evaluation_markdown(evaluation).encode(),
        MODEL_CARD: model_card(evaluation).encode(),
    } | ({} if rows is None else {SNAPSHOT: pack_rows(rows)})
    for name, content in files.items():
        write_durably(draft.artifact / name, content)


def build(draft: Draft, plan: CandidatePlan, bounds: UpdaterSettings, update: int = 0) -> Manifest:
    """Run all stages that are not done yet; return the manifest to seal.

    update: the run's number; bounds: of the gates. Raises CandidateRefusedError and
    detector.model.export.ExportError.
    """
    trained = train_network(draft, plan)
    calibrated = calibrate_gate(draft, trained)
    power = leave_families_out(draft, trained)
    exported = export_graph(draft, trained, calibrated)
    localizer = build_localizer(draft, plan)
    scanner = build_scanner(draft, plan)
    made = calibrated, exported, power, localizer, scanner
    write_report(draft, plan, evaluate_candidate(draft, plan, update, bounds, *made))
    policy = ProvenancePolicy(unsigned=bounds.unsigned_declarations)
    parts = {"localizer": localizer, "scanner": scanner and scanner.contract, "provenance": policy}
    return make_manifest(plan, calibrated, exported).model_copy(update=parts)
