"""A candidate on its way to an artifact, stage by stage, in one folder that survives its runner.

A stage is done when its last file is in place, and each file gets there whole and stays through a
power cut. So a successor on the same disk goes on behind the last stage that was finished, and
inside training behind the last checkpoint.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch import Tensor

from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network, PictureBranch
from detector.release.architecture import FEATURE_VERSION
from detector.release.artifact import MODEL, PROBE, REFERENCE, WEIGHTS, Artifact, seal
from detector.release.contract import Contract, crops_and_pooling, picture_and_pooling
from detector.release.gate import GateParameters
from detector.release.graph_contract import write_probe
from detector.release.manifest import Manifest, ReferenceEntry
from detector.release.map_contract import MapContract
from detector.release.reference import Reference, load_reference
from detector.release.scan_contract import ScanContract
from detector.serving.session import Session
from ingest.durable import ASIDE, make_folder, rename_durably, write_durably
from updater.candidate.calibrate import calibrate
from updater.candidate.evaluate import batch, spread
from updater.candidate.live import live_calls
from updater.candidate.localized import localized
from updater.candidate.parent import branch_of, load_network
from updater.candidate.picture import fit_head, vote_on
from updater.candidate.plan import Plan
from updater.candidate.power import measure_power
from updater.candidate.scanned import Scanned, scanned
from updater.candidate.together import learn
from updater.progress import Progress
from updater.records import Power
from updater.training.pools import with_crop_features
from updater.training.step import FIRST, UPDATE, Learnt, Step
from updater.training.weights import PICTURE

M = TypeVar("M", bound=BaseModel)

PROBE_ITEMS = 4
PROOF_ITEMS = 24


def identity(plan: Plan, update: int) -> str:
    """Return a SHA-256 of everything that a run's candidate and its evaluation follow from."""
    splits = plan.splits
    parts = {
        "update": update,
        "classes": plan.classes,
        "architecture": plan.architecture.model_dump(),
        "crop_plan": plan.crop_plan.model_dump(),
        "parent": plan.parent and plan.parent.artifact.digest,
        "items": [[one.ids, one.families] for one in (splits.train, splits.calibration, splits.test)],
        "without": sorted(plan.without),
        "seed": plan.seed,
        "training": asdict(plan.training),
        "features": FEATURE_VERSION,
        "picture": plan.picture_plan and plan.picture_plan.model_dump(),
        "picture_from": plan.picture_from and plan.picture_from.digest,
        "start_from": plan.start_from and plan.start_from.digest,
        "localizer_steps": plan.localizer_steps,
        "scanner_steps": plan.scanner_steps,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Calibrated(BaseModel):
    """What calibration found, kept between the stages."""

    model_config = ConfigDict(frozen=True)

    gate: GateParameters
    reference: tuple[ReferenceEntry, ...]
    figures: dict[str, float]


class Exported(BaseModel):
    """What the export gave, kept between the stages; differences as in `export.prove_equal`."""

    model_config = ConfigDict(frozen=True)

    contract: Contract
    differences: dict[str, float]


class Workshop:
    """The folder in which one run's candidate is made.

    artifact/ holds what will be sealed; beside it lie the checkpoint and what only later stages
    read. A folder that was begun from other data, or from another parent, is emptied.
    """

    def __init__(self, root: Path, identity: str) -> None:
        self.root = root
        self.draft = root / "artifact"
        mark = root / "made-from"
        if not mark.is_file() or mark.read_text() != identity:
            shutil.rmtree(root, ignore_errors=True)
            write_durably(mark, identity.encode())
        make_folder(self.draft)
        for unfinished in self.draft.glob(f".*{ASIDE}"):  # by a runner that was killed
            unfinished.unlink()

    def learnt(self, plan: Plan, progress: Progress) -> Network:
        """Train the network, or load the one that was trained here."""
        weights = self.draft / WEIGHTS
        if weights.is_file():
            return load_network(weights, plan.architecture, plan.classes).to(plan.device)
        parent = plan.parent
        train = plan.splits.train
        step = Step(
            train=train,
            classes=plan.classes,
            architecture=plan.architecture,
            previous=Learnt(parent.network, parent.artifact.manifest.classes) if parent else None,
            recipe=plan.training.recipe(UPDATE if parent else FIRST, len(train), plan.architecture),
            without=plan.without,
            seed=plan.seed,
            device=plan.device,
            checkpoint=self.root / "checkpoint.safetensors",
            start_from=plan.start_from,
            progress=progress,
        )
        network = learn(step, self.root / "step.safetensors").network
        self._keep(network.state_dict(), weights)
        return network

    def pictured(
        self, plan: Plan, branch: PictureBranch | None, network: Network, progress: Progress
    ) -> PictureBranch | None:
        """Give the branch its vote, or load the one that was fitted here; None without a branch."""
        if branch is None:
            return None
        held = load_file(self.draft / WEIGHTS)
        if (made := branch_of(held, branch.picture, plan.classes)) is not None:
            return made
        fit_head(plan, branch, network, progress)
        state = {PICTURE + name: value for name, value in branch.state_dict().items()}
        self._keep(held | state, self.draft / WEIGHTS)
        return branch

    def _keep(self, state: Mapping[str, Tensor], path: Path) -> None:
        aside = self.root / f"{path.name}{ASIDE}"
        save_file({name: value.cpu().contiguous() for name, value in state.items()}, aside)
        rename_durably(aside, path)

    def calibrated(
        self, plan: Plan, network: Network, branch: PictureBranch | None, progress: Progress
    ) -> tuple[Calibrated, Reference | None]:
        """Fit the gate and the reference set, or load those that were fitted here."""
        record, arrays = self.root / "calibrated.json", self.draft / REFERENCE
        if not record.is_file():
            gate, reference, figures = calibrate(
                network,
                plan.splits.train,
                plan.splits.calibration,
                plan.classes,
                device=plan.device,
                vote=vote_on(branch, plan.splits.calibration),
                live=live_calls(plan, progress),
                progress=progress,
            )
            entries: tuple[ReferenceEntry, ...] = ()
            if reference is not None:
                aside = self.root / REFERENCE
                reference.save(aside)
                rename_durably(aside, arrays)
                pairs = zip(reference.ids, reference.families, strict=True)
                entries = tuple(ReferenceEntry(exemplar=one, family=family) for one, family in pairs)
            found = Calibrated(gate=gate, reference=entries, figures=figures)
            write_durably(record, found.model_dump_json().encode())
        # Read back even when it was made just now, so that a resumed run has the very same numbers.
        found = Calibrated.model_validate_json(record.read_bytes())
        if not plan.architecture.forensic:
            return found, None
        ids = tuple(entry.exemplar for entry in found.reference)
        return found, load_reference(arrays, ids, tuple(entry.family for entry in found.reference))

    def power(self, plan: Plan, network: Network, progress: Progress) -> Power | None:
        """Measure the candidate's power, or read what was measured here."""
        return self._once("power.json", Power, lambda: measure_power(plan, network, progress))

    def exported(self, plan: Plan, graph: DetectorGraph) -> Exported:
        """Export the graph, prove it equal, and write the probe.

        Raises detector.model.export.ExportError.
        """
        record, model = self.root / "exported.json", self.draft / MODEL
        if not record.is_file():
            aside = self.root / MODEL
            shown = () if plan.picture_plan is None else picture_and_pooling(plan.picture_plan)
            contract = export(graph, (*crops_and_pooling(plan.crop_plan), *shown), aside)
            some = spread(plan.splits.calibration, PROOF_ITEMS)
            few = some.take(range(min(PROBE_ITEMS, len(some))))
            worst = prove_equal(graph, aside, contract, [batch(some), batch(few), batch(few.take([0]))])
            rename_durably(aside, model)
            asked = batch(few)
            write_probe(self.root / PROBE, asked, Session(model, contract, threads=1).score(asked))
            rename_durably(self.root / PROBE, self.draft / PROBE)
            found = Exported(contract=contract, differences=worst)
            write_durably(record, found.model_dump_json().encode())
        return Exported.model_validate_json(record.read_bytes())

    def localized(self, plan: Plan, progress: Progress) -> MapContract | None:
        """Make what says where a picture is forged, or read what was made here; None without."""
        return self._once("localized.json", MapContract, lambda: localized(plan, self.draft, progress))

    def scanned(self, plan: Plan, progress: Progress) -> Scanned | None:
        """Make what says when a video is forged, or read what was made here; None without."""
        return self._once("scanned.json", Scanned, lambda: scanned(plan, self.draft, progress))

    def _once(self, name: str, kind: type[M], make: Callable[[], M | None]) -> M | None:
        """Make something and keep what it is, or read what was made here before."""
        record = self.root / name
        if not record.is_file():
            made = make()
            write_durably(record, b"null" if made is None else made.model_dump_json().encode())
        found = record.read_bytes()
        return None if found == b"null" else kind.model_validate_json(found)

    def manifest(self, plan: Plan, calibrated: Calibrated, exported: Exported) -> Manifest:
        """Return the candidate's manifest as it is before it is sealed, when no file is in it yet."""
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
        )

    def sealed(
        self,
        plan: Plan,
        calibrated: Calibrated,
        exported: Exported,
        localizer: MapContract | None,
        scanner: ScanContract | None,
    ) -> Artifact:
        """Write the manifest over all that lies in artifact/."""
        draft = self.manifest(plan, calibrated, exported)
        return seal(self.draft, draft.model_copy(update={"localizer": localizer, "scanner": scanner}))


def with_features(plan: Plan, progress: Progress) -> Plan:
    """Return the plan with the forensic features of the crops that several stages read."""
    if not plan.architecture.forensic:
        return plan
    splits = plan.splits
    train = with_crop_features(splits.train, plan.device, lambda *at: progress("features", *at))
    held = with_crop_features(
        splits.calibration, plan.device, lambda *at: progress("features held back", *at)
    )
    return replace(plan, splits=replace(splits, train=train, calibration=held))
