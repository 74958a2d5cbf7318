"""A candidate on its way to an artifact: a table of stages, which one loop runs and resumes.

A stage is done when its file is in place. So a successor on the same disk goes on behind the last stage that
was finished, and inside training behind the last checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from safetensors.torch import load_file

from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.release.artifact import EVALUATION, MODEL, PROBE, REFERENCE, WEIGHTS, Artifact, seal
from detector.release.contract import crops_and_pooling, picture_and_pooling
from detector.release.crop_graphs import MapContract
from detector.release.manifest import ReferenceEntry
from detector.release.tensors import write_probe
from detector.serving.session import Session
from ingest.durable import rename_durably, write_durably
from updater.candidate.calibrate import calibrate
from updater.candidate.draft import FILES, Calibrated, Draft, Exported, Learnt, Scanned
from updater.candidate.evaluate import batch, spread
from updater.candidate.evaluation import evaluated
from updater.candidate.localized import localized
from updater.candidate.parent import live_calls
from updater.candidate.picture import fit_head, vote_on
from updater.candidate.power import measure_power
from updater.candidate.scanned import scanned
from updater.candidate.together import learn
from updater.metrics import timed
from updater.records import Power
from updater.training import step
from updater.training.weights import PICTURE

PROBE_ITEMS = 4
PROOF_ITEMS = 24


def learnt(draft: Draft) -> Learnt:
    """Train the network, then fit the vote of its picture branch where it has one."""
    plan, weights = draft.featured, draft.artifact / WEIGHTS
    if not weights.is_file():
        parent = plan.parent
        trained = learn(
            step.Step(
                train=plan.splits.train,
                classes=plan.classes,
                architecture=plan.architecture,
                previous=step.Learnt(parent.network, parent.artifact.manifest.classes) if parent else None,
                recipe=plan.recipe,
                without=plan.without,
                seed=plan.seed,
                device=plan.device,
                checkpoint=draft.root / "checkpoint.safetensors",
                start_from=plan.start_from,
                progress=draft.progress,
            ),
            draft.root / "step.safetensors",
        )
        draft.keep(trained.network.state_dict(), weights)
    if (branch := draft.begun) is not None:
        fit_head(plan, branch, draft.network, draft.progress)
        state = {PICTURE + name: value for name, value in branch.state_dict().items()}
        draft.keep(load_file(weights) | state, weights)
    return Learnt()


def calibrated(draft: Draft) -> Calibrated:
    """Fit the gate and the reference set."""
    plan = draft.featured
    held = plan.splits.calibration
    gate, reference, figures = calibrate(
        draft.network,
        plan.splits.train,
        held,
        plan.classes,
        device=plan.device,
        vote=vote_on(draft.branch, held),
        live=live_calls(plan, draft.progress),
        progress=draft.progress,
    )
    entries: tuple[ReferenceEntry, ...] = ()
    if reference is not None:
        aside = draft.root / REFERENCE
        reference.save(aside)
        rename_durably(aside, draft.artifact / REFERENCE)
        pairs = zip(reference.ids, reference.families, strict=True)
        entries = tuple(ReferenceEntry(exemplar=item, family=family) for item, family in pairs)
    return Calibrated(gate=gate, reference=entries, figures=figures)


def exported(draft: Draft) -> Exported:
    """Export the graph, prove it equal, and write the probe. Raises detector.model.export.ExportError."""
    plan = draft.plan
    draft.progress("export", 0, 1)
    graph = DetectorGraph(draft.network, draft.left(Calibrated).gate, draft.reference, draft.branch)
    aside, model, probe = draft.root / MODEL, draft.artifact / MODEL, draft.root / PROBE
    shown = () if plan.picture_plan is None else picture_and_pooling(plan.picture_plan)
    contract = export(graph, (*crops_and_pooling(plan.crop_plan), *shown), aside)
    some = spread(plan.splits.calibration, PROOF_ITEMS)
    few = some.take(range(min(PROBE_ITEMS, len(some))))
    worst = prove_equal(graph, aside, contract, [batch(some), batch(few), batch(few.take([0]))])
    rename_durably(aside, model)
    asked = batch(few)
    write_probe(probe, asked, Session(model, contract, threads=1).score(asked))
    rename_durably(probe, draft.artifact / PROBE)
    return Exported(contract=contract, differences=worst)


@dataclass(frozen=True)
class Stage:
    """A stage of the way."""

    name: str
    """as its duration is called in the metrics"""
    file: str
    """in the run's folder, put there last: what `make` returns, as JSON"""
    make: Callable[[Draft], BaseModel | None]
    """what is done; None where there is nothing to do"""


STAGES = (
    Stage("learn", FILES[Learnt], learnt),
    Stage("calibrate", FILES[Calibrated], calibrated),
    Stage("power", FILES[Power], lambda draft: measure_power(draft.featured, draft.network, draft.progress)),
    Stage("export", FILES[Exported], exported),
    Stage(
        "localize", FILES[MapContract], lambda draft: localized(draft.plan, draft.artifact, draft.progress)
    ),
    Stage("scan", FILES[Scanned], lambda draft: scanned(draft.plan, draft.artifact, draft.progress)),
    Stage("evaluate", f"artifact/{EVALUATION}", evaluated),
)


def build(draft: Draft, stages: Sequence[Stage] = STAGES) -> None:
    """Do what is not done yet of these stages, in their order."""
    for stage in stages:
        path = draft.root / stage.file
        with timed(stage.name):
            if not path.is_file():
                record = stage.make(draft)
                write_durably(path, b"null" if record is None else record.model_dump_json(indent=1).encode())


def sealed(draft: Draft) -> Artifact:
    """Write the manifest over all that lies in the artifact, once all stages are done."""
    scanner = draft.left_by(Scanned)
    graphs = {"localizer": draft.left_by(MapContract), "scanner": scanner and scanner.contract}
    return seal(draft.artifact, draft.manifest().model_copy(update=graphs))
