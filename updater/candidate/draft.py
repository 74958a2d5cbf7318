"""The folder in which one run's candidate is made, and what lies in it. It survives its runner."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from safetensors.torch import save_file
from torch import Tensor, nn

from detector.model.export import export_proven
from detector.model.network import Network
from detector.release.artifact import WEIGHTS, Artifact, Graph, Reference
from detector.release.contract import Contract
from detector.release.crop_graphs import CropGraph, MapContract, ScanContract
from detector.release.experts import CarriedExpert
from detector.release.manifest import FEATURE_VERSION, GateParameters, Manifest, ReferenceEntry
from detector.release.tensors import Request, write_probe
from detector.serving.session import Session
from ingest.durable import ASIDE, make_folder, rename_durably, write_durably
from updater.candidate.plan import CandidatePlan, load_network, reference_of
from updater.data.training_data import LabelledCrops
from updater.experts.look import with_expert_logits
from updater.progress import Progress
from updater.records import Power, ScannerFound
from updater.settings import UpdaterSettings
from updater.training.crop_rows import with_crop_features

M = TypeVar("M", bound=BaseModel)
C = TypeVar("C", bound=CropGraph)

FROZEN = "frozen"
"""folder of what frozen models made of pictures, in any run"""


class Calibrated(BaseModel):
    """What calibration found; the reference set's arrays lie in the artifact."""

    model_config = ConfigDict(frozen=True)

    gate: GateParameters
    reference: tuple[ReferenceEntry, ...]
    figures: dict[str, float]
    experts: tuple[CarriedExpert, ...] = ()


class Exported(BaseModel):
    """What the export gave; differences as of `detector.model.export.prove_equal`."""

    model_config = ConfigDict(frozen=True)

    contract: Contract
    differences: dict[str, float]


class Scanned(BaseModel):
    """What says when a video is forged, and how it fared when it was trained."""

    model_config = ConfigDict(frozen=True)

    contract: ScanContract
    found: ScannerFound | None
    """None of a parent's of which nothing is known"""


FILES: Mapping[type[BaseModel], str] = {
    Calibrated: "calibrated.json",
    Power: "power.json",
    Exported: "exported.json",
    MapContract: "localized.json",
    Scanned: "scanned.json",
}
"""what a stage leaves for the next, by its type"""


class Draft:
    """What there is of a candidate: its plan, and what the stages that are done have left of it.

    artifact/ holds what will be sealed; beside it lie the checkpoint and what only later stages read. A
    folder that was begun from other data, or from another parent, is emptied. Each file gets there whole and
    stays through a power cut. What a stage made is read back from there even when it was made just now, so
    that a resumed run has the very same numbers.
    """

    def __init__(
        self, root: Path, plan: CandidatePlan, settings: UpdaterSettings, progress: Progress, update: int = 0
    ) -> None:
        """update: the run's number."""
        self.root, self.plan, self.settings = root, plan, settings
        self.progress, self.update = progress, update
        self.artifact = root / "artifact"
        mark, identity = root / "made-from", identity_of(plan, update)
        if not mark.is_file() or mark.read_text() != identity:
            shutil.rmtree(root, ignore_errors=True)
            write_durably(mark, identity.encode())
        make_folder(self.artifact)
        for unfinished in self.artifact.glob(f".*{ASIDE}"):  # by a runner that was killed
            unfinished.unlink()

    @cached_property
    def plan_with_features(self) -> CandidatePlan:
        """The plan with the features and the experts' logits of its items to train and calibrate on.

        Frozen features of whole items are the memory's, where it holds today's; else each crop's are made.
        """
        plan, kept = self.plan, self.settings.work_dir / FROZEN

        def prepare(items: LabelledCrops, stage: str) -> LabelledCrops:
            if plan.architecture.forensic and not (plan.architecture.frozen and items.features is not None):
                items = with_crop_features(items, plan.device, partial(self.progress, stage))
            return with_expert_logits(items, plan.experts, kept, self.progress)

        train = prepare(plan.splits.train, "features")
        held = prepare(plan.splits.calibration, "features held back")
        return replace(plan, splits=replace(plan.splits, train=train, calibration=held))

    @cached_property
    def network(self) -> Network:
        """The trained network, on the plan's device."""
        plan = self.plan
        return load_network(self.artifact / WEIGHTS, plan.architecture, plan.classes).to(plan.device)

    @property
    def reference(self) -> Reference | None:
        """The reference set; None for a candidate without forensic features."""
        return reference_of(self.artifact, self.plan.architecture, self.stage_result(Calibrated).reference)

    def stage_result(self, kind: type[M]) -> M:
        """Return what the stage of this kind left, which it has done."""
        record = self.optional_stage_result(kind)
        assert record is not None
        return record

    def optional_stage_result(self, kind: type[M]) -> M | None:
        """Return what the stage of this kind left; None where there was nothing for it to do."""
        record = (self.root / FILES[kind]).read_bytes()
        return None if record == b"null" else kind.model_validate_json(record)

    def keep(self, state: Mapping[str, Tensor], path: Path) -> None:
        """Write tensors by name as safetensors."""
        aside = self.root / f"{path.name}{ASIDE}"
        save_file({name: value.cpu().contiguous() for name, value in state.items()}, aside)
        rename_durably(aside, path)

    def manifest(self) -> Manifest:
        """Return the manifest of what is exported, before any file is in it."""
        plan, calibrated, exported = self.plan, self.stage_result(Calibrated), self.stage_result(Exported)
        return Manifest(
            classes=plan.classes,
            architecture=plan.architecture,
            contract=exported.contract,
            feature_version=FEATURE_VERSION if plan.architecture.forensic else None,
            gate=calibrated.gate,
            reference=calibrated.reference,
            parent=plan.parent and plan.parent.artifact.digest,
            calibration=calibrated.figures,
            export_differences=exported.differences,
            experts=calibrated.experts,
        )


def put_graph(
    folder: Path, files: Graph, graph: nn.Module, trained: nn.Module, contract: C, shown: Sequence[Request]
) -> C:
    """Export a graph beside the detector's, proven equal on the requests, and put its files into the folder.

    The probe is the first request. trained: whose weights are kept. Returns the contract with what the proof
    found. Raises detector.model.export.ExportError.
    """
    aside, probe, weights = (folder.parent / name for name in files.files)
    contract = export_proven(graph, contract, aside, shown)
    write_probe(probe, shown[0], Session(aside, contract, threads=1).score(shown[0]))
    save_file({name: value.contiguous() for name, value in trained.state_dict().items()}, weights)
    for name in files.files:
        rename_durably(folder.parent / name, folder / name)
    return contract


def take_graph_over(folder: Path, files: Graph, parent: Artifact) -> None:
    """Put the files of a graph of the parent's into the folder."""
    for name in files.files:
        shutil.copyfile(parent.folder / name, folder.parent / name)
        rename_durably(folder.parent / name, folder / name)


def identity_of(plan: CandidatePlan, update: int) -> str:
    """Return a SHA-256 of everything that a run's candidate and its evaluation follow from."""
    splits = plan.splits
    parts = {
        "update": update,
        "classes": plan.classes,
        "architecture": plan.architecture.model_dump(),
        "crop_plan": plan.crop_plan.model_dump(),
        "parent": plan.parent and plan.parent.artifact.digest,
        "items": [[part.ids, part.families] for part in (splits.train, splits.calibration, splits.test)],
        "without": sorted(plan.without),
        "seed": plan.seed,
        "recipe": asdict(plan.recipe),
        "features": FEATURE_VERSION,
        "picture": plan.picture_plan and plan.picture_plan.model_dump(),
        "start_from": plan.start_from and plan.start_from.digest,
        "localizer_steps": plan.localizer_steps,
        "scanner_steps": plan.scanner_steps,
    }
    if plan.experts:
        parts["experts"] = [expert.contract.model_dump() for expert in plan.experts]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
