"""The folder in which a run's candidate is made, and the records of its stages. It survives its runner."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from pydantic import BaseModel
from safetensors.torch import save_file
from torch import Tensor, nn

from detector.model.export import export_proven
from detector.release.artifact import Artifact, Graph
from detector.release.contract import Contract
from detector.release.crop_graphs import CropGraph, ScanContract
from detector.release.experts import CarriedExpert
from detector.release.manifest import FEATURE_VERSION, GateParameters, Manifest, ReferenceEntry
from detector.release.tensors import Request, write_probe
from detector.serving.session import Session
from ingest.durable import ASIDE, make_folder, rename_durably, write_durably
from updater.candidate.plan import CandidatePlan
from updater.metrics import time_stage
from updater.progress import Progress, no_progress
from updater.records import ScannerFound

P = ParamSpec("P")
R = TypeVar("R", bound=BaseModel | None)
C = TypeVar("C", bound=CropGraph)


class Calibrated(BaseModel, frozen=True):
    """The result of calibration; the reference set's arrays lie in the artifact."""

    gate: GateParameters
    reference: tuple[ReferenceEntry, ...]
    figures: dict[str, float]
    experts: tuple[CarriedExpert, ...] = ()


class Exported(BaseModel, frozen=True):
    """The result of the export; differences as of `detector.model.export.prove_equal`."""

    contract: Contract
    differences: dict[str, float]


class Scanned(BaseModel, frozen=True):
    """The scanner, and its figures from training."""

    contract: ScanContract
    found: ScannerFound | None
    """None of a parent's of which nothing is known"""


class Draft:
    """The files of a run's candidate. artifact/ holds what will be sealed; beside it lie records of stages.

    A folder that was begun from other data, or from another parent, is emptied. Each file gets there whole
    and stays through a power cut.
    """

    def __init__(self, root: Path, identity: str, progress: Progress = no_progress) -> None:
        """identity: of everything that the candidate follows from, as `identity_of` returns it."""
        self.root, self.artifact, self.progress = root, root / "artifact", progress
        mark = root / "made-from"
        if not mark.is_file() or mark.read_text() != identity:
            shutil.rmtree(root, ignore_errors=True)
            write_durably(mark, identity.encode())
        make_folder(self.artifact)
        for unfinished in self.artifact.glob(f".*{ASIDE}"):  # by a runner that was killed
            unfinished.unlink()

    def keep(self, state: Mapping[str, Tensor], path: Path) -> None:
        aside = self.root / f"{path.name}{ASIDE}"
        save_file({name: value.cpu().contiguous() for name, value in state.items()}, aside)
        rename_durably(aside, path)


def stage(
    name: str, file: str, kind: type[BaseModel]
) -> Callable[[Callable[Concatenate[Draft, P], R]], Callable[Concatenate[Draft, P], R]]:
    """Make a function a stage: it is not called again where the draft's folder has the record of it.

    name: of its duration in the metrics. file: of the record, written last; null where there was nothing to
    do. The record is read back even when it was made just now, so that a resumed run has the same numbers.
    """

    def resumable(make: Callable[Concatenate[Draft, P], R]) -> Callable[Concatenate[Draft, P], R]:
        @wraps(make)
        def resume(draft: Draft, /, *args: P.args, **kwargs: P.kwargs) -> R:
            path = draft.root / file
            with time_stage(name):
                if not path.is_file():
                    record = make(draft, *args, **kwargs)
                    written = "null" if record is None else record.model_dump_json(indent=1)
                    write_durably(path, written.encode())
            kept = path.read_bytes()
            return cast(R, None if kept == b"null" else kind.model_validate_json(kept))

        return resume

    return resumable


def put_graph(
    folder: Path, files: Graph, graph: nn.Module, trained: nn.Module, contract: C, requests: Sequence[Request]
) -> C:
    """Export a graph beside the detector's, proven equal on the requests, and put its files into the folder.

    The probe is the first request. trained: whose weights are kept. Returns the contract with what the proof
    found. Raises detector.model.export.ExportError.
    """
    aside, probe, weights = (folder.parent / name for name in files.files)
    contract = export_proven(graph, contract, aside, requests)
    write_probe(probe, requests[0], Session(aside, contract, threads=1).score(requests[0]))
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


def make_manifest(plan: CandidatePlan, calibrated: Calibrated, exported: Exported) -> Manifest:
    """Return the manifest of the export, before any file is in it."""
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
