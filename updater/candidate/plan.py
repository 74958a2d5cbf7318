"""The plan of an update: its classes, its items and its parent release."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file

from detector.model.backbone import BackboneError, architecture_of
from detector.model.network import Network
from detector.release.artifact import (
    REFERENCE,
    SNAPSHOT,
    STATISTICS,
    WEIGHTS,
    Artifact,
    Reference,
    load_reference,
)
from detector.release.manifest import FEATURE_VERSION, Architecture, ReferenceEntry
from detector.serving.session import open_session
from ingest.records import CropPlan, PicturePlan
from memory.records import REAL
from memory.settings import MemorySettings
from updater.candidate.evaluate import FrozenHead, GatedModel, GatedNetwork
from updater.candidate.gate_inputs import network_scores, part_of
from updater.candidate.outlook import LEAST
from updater.candidate.reference_set import REFERENCE_ROWS, Foreign, foreign_rows
from updater.candidate.snapshot import Snapshot, SnapshotError
from updater.candidate.thresholds import LiveCalls
from updater.data.training_data import LabelledCrops, Splits
from updater.experts.look import Expert
from updater.progress import Progress
from updater.settings import TIMM, UpdaterSettings
from updater.training.step import FIRST, UPDATE, Recipe
from updater.training.sums import POOLED, Statistics, StatisticsError, statistics_of
from updater.training.weights import Weights, choose_weights

FROZEN = "frozen"
"""folder of what frozen models made of pictures, in any run"""


class CandidateRefusedError(Exception):
    """There is no candidate to propose; the text says why. Fatal for the run."""


@dataclass(frozen=True)
class Parent:
    """The live release that a candidate is trained from and measured against."""

    artifact: Artifact
    network: Network
    statistics: Statistics | None = None
    """its sums of what no memory holds; None where it was trained by steps"""
    reference: Foreign | None = None
    """rows of its reference set of what no memory holds; None likewise"""


@dataclass(frozen=True)
class CandidatePlan:
    """The inputs of a candidate.

    classes: real first, then the parent's in their order, then the new ones. splits: the items of
    these classes. waiting: classes with too few items yet, and how many those are in each split.
    """

    classes: tuple[str, ...]
    new: tuple[str, ...]
    waiting: Mapping[str, Mapping[str, int]]
    architecture: Architecture
    crop_plan: CropPlan
    parent: Parent | None
    splits: Splits
    recipe: Recipe
    without: frozenset[str]
    seed: int
    device: torch.device
    start_from: Weights | None = None
    """what release 0 begins with; else at random"""
    picture_plan: PicturePlan | None = None
    """how the whole picture is shown to experts that take it, where there are any"""
    localizer_steps: int = 0
    """of the training of what says where a picture is forged; 0: the parent's is taken over"""
    scanner_steps: int = 0
    """of the training of what says when a video is forged; 0: the parent's is taken over"""
    reference_rows: int = REFERENCE_ROWS
    """training items at most that novelty is measured against"""
    reals_lost: float = 0.05
    """at first sight, of the reals of a source that was left out: called something else"""
    experts: tuple[Expert, ...] = ()
    """what the release carries of networks with a real/fake head of their own"""
    expert_logits: Path | None = None
    """folder of what these said of pictures, in any run"""


def make_plan(settings: UpdaterSettings, parent: Parent | None, splits: Splits) -> CandidatePlan:
    """Choose the classes of the next candidate.

    Raises CandidateRefusedError where there is nothing that can be learnt.

    The architecture and the cropping are the parent's, as long as there is one: its exemplars were
    cut so. An old family keeps its place even with few exemplars left, but not with none.
    """
    counted = {name: getattr(splits, name).counts() for name in LEAST}
    forgeries = {name for split in counted.values() for name in split} - {REAL}
    counts = {
        name: {split: counted[split].get(name, 0) for split in LEAST} for name in sorted(forgeries | {REAL})
    }
    waiting = {name: of for name, of in counts.items() if any(of[split] < LEAST[split] for split in LEAST)}
    if REAL in waiting:
        raise CandidateRefusedError(
            f"too few labelled reals: {_counts(counts[REAL])}, needed {_counts(LEAST)}"
        )
    old = parent.artifact.manifest.classes[1:] if parent else ()
    summed = parent.statistics.families if parent and parent.statistics else ()
    for name in old:
        if name not in summed and 0 in counts.get(name, dict.fromkeys(LEAST, 0)).values():
            raise CandidateRefusedError(
                f"the live release knows {name}, and no exemplar of it is left in some split"
            )
    new = tuple(sorted(set(counts) - set(waiting) - set(old) - {REAL}))
    if not old and not new:
        few = "; ".join(f"{name} has {_counts(of)}" for name, of in waiting.items()) or "none is labelled"
        raise CandidateRefusedError(f"no family has enough labelled exemplars ({_counts(LEAST)}): {few}")
    classes = (REAL, *old, *new)
    chosen = Splits(
        **{split: _only(getattr(splits, split), classes) for split in LEAST},
        resting=splits.resting,
        clips=splits.clips,
        by_declaration=splits.by_declaration,
    )
    crop_px = chosen.train.crops.shape[1]
    manifest = parent.artifact.manifest if parent else None
    if manifest is not None and manifest.architecture.frozen != (settings.learner == "lda"):
        learner = "lda" if manifest.architecture.frozen else "softmax"
        raise CandidateRefusedError(
            f"the live release was learnt by {learner}, and FORGEWATCH_UPDATER_LEARNER is"
            f" {settings.learner}: set {learner}, or begin with an empty ledger, to learn release 0 anew"
        )
    architecture = manifest.architecture if manifest else _architecture(settings, crop_px)
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    return CandidatePlan(
        classes=classes,
        new=new,
        waiting={name: of for name, of in waiting.items() if name not in classes},
        architecture=architecture,
        crop_plan=manifest.contract.crop_plan if manifest else CropPlan(crop_px=crop_px),
        parent=parent,
        splits=chosen,
        recipe=recipe_of(settings, UPDATE if parent else FIRST, len(chosen.train)),
        without=settings.without_kinds,
        seed=settings.seed,
        device=torch.device(auto if settings.device == "auto" else settings.device),
        localizer_steps=settings.localizer_steps,
        scanner_steps=settings.scanner_steps,
        expert_logits=settings.work_dir / FROZEN,
    )


def _architecture(settings: UpdaterSettings, crop_px: int) -> Architecture:
    try:
        return architecture_of(settings.backbone, crop_px=crop_px, frozen=settings.learner == "lda")
    except BackboneError as error:
        raise CandidateRefusedError(f"FORGEWATCH_UPDATER_BACKBONE: {error}") from error


def recipe_of(settings: UpdaterSettings, usual: Recipe, items: int) -> Recipe:
    """Return how long and how fast a backbone is trained on so many items: as usual, but for settings.

    An item is drawn with its share of pseudo-forgeries. There is at least one step.
    """
    batch, steps = settings.batch or usual.batch, usual.backbone_steps
    if settings.epochs is not None:
        steps = max(1, round(settings.epochs * items * (1 + usual.pseudo_share) / batch))
    rate = settings.rate or usual.backbone_rate
    return replace(usual, batch=batch, backbone_steps=steps, backbone_rate=rate)


def _only(items: LabelledCrops, classes: tuple[str, ...]) -> LabelledCrops:
    return items.take(i for i, family in enumerate(items.families) if family in classes)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {split}" for split, count in counts.items())


def load_parent(artifact: Artifact) -> Parent:
    """Load the network of a release for training on.

    Raises CandidateRefusedError where it reads other features, or is of a learner's own architecture.
    """
    manifest = artifact.manifest
    if manifest.feature_version not in (None, FEATURE_VERSION):
        raise CandidateRefusedError(
            f"release {artifact.version} reads forensic features of version {manifest.feature_version}, and "
            f"this version makes {FEATURE_VERSION}: begin with an empty ledger, to train release 0 anew"
        )
    weights, architecture = artifact.folder / WEIGHTS, manifest.architecture
    if architecture.tasks is not None:
        raise CandidateRefusedError(
            "the live release is a network of task tokens (DyTox), which the stream's learner does not go on"
            " from: make another release live first, or begin with an empty ledger"
        )
    network = load_network(weights, architecture, manifest.classes)
    return Parent(artifact, network, *(_foreign(artifact) if architecture.frozen else ()))


def _foreign(artifact: Artifact) -> tuple[Statistics, Foreign]:
    """Return a release's sums, and rows of its reference set, without the items of its snapshot.

    What a memory holds is summed anew at each update: so what it no longer holds, or holds by another label,
    is subtracted to the bit. Raises CandidateRefusedError where they cannot be read.
    """
    try:
        statistics = statistics_of(load_arrays(artifact.folder / STATISTICS))
        packed = artifact.folder / SNAPSHOT
        rows = list(Snapshot(packed.read_bytes())) if packed.is_file() else []
        reference = reference_of(artifact.folder, artifact.manifest.architecture, artifact.manifest.reference)
        assert reference is not None
        foreign = statistics.without({POOLED, *(row.source for row in rows if row.split == "train")})
        # No memory's source has a line break: one called as what ships is not added to it, nor replaces it.
        strata = tuple((family, f"\n{source.removeprefix(chr(10))}") for family, source in foreign.strata)
        return replace(foreign, strata=strata), foreign_rows(reference, {row.exemplar for row in rows})
    except (StatisticsError, SnapshotError, SafetensorError, OSError) as error:
        raise CandidateRefusedError(f"release {artifact.version} cannot be gone on from: {error}") from error


def load_network(weights: Path, architecture: Architecture, classes: tuple[str, ...]) -> Network:
    """Load a network on the CPU, in evaluation mode."""
    network = Network(architecture, len(classes))
    network.load_state_dict(load_file(weights))
    return network.eval()


def picture_plan(
    memory: MemorySettings, parent: Parent | None, experts: Sequence[Expert]
) -> PicturePlan | None:
    """Return how whole pictures are shown to experts that take them; None where no expert does.

    It is the parent's, or the memory's. Raises CandidateRefusedError where the memory keeps no pictures.
    """
    readers = [expert.contract.name for expert in experts if expert.contract.input == "resize"]
    if not readers:
        return None
    of_parent = parent and parent.artifact.manifest.contract.picture_plan
    plan = of_parent or memory.picture_plan
    if plan is None:
        raise CandidateRefusedError(
            f"the memory keeps no pictures for expert {readers[0]}: set FORGEWATCH_MEMORY_PICTURE_PX, and"
            f" import into an empty memory, or forgewatch expert remove {readers[0]}"
        )
    return plan


def initial_weights(settings: UpdaterSettings) -> Weights | None:
    """Return the weights that release 0 begins with, read or fetched; None: random. Raises WeightsError."""
    timm = settings.checkpoint == TIMM
    return choose_weights(settings.backbone, None if timm else settings.checkpoint, timm)


def live_calls(
    parent: Parent | None, items: LabelledCrops, device: torch.device, progress: Progress
) -> LiveCalls | None:
    """Return the calls of a plan's parent of the calibration items; None where nothing is live."""
    if parent is None:
        return None
    artifact, manifest = parent.artifact, parent.artifact.manifest
    if manifest.experts:  # which its graph alone still holds
        calls = GatedModel(open_session(artifact, threads=1), manifest.gate, manifest.classes).calls(items)
    else:
        network = parent.network.to(device)
        calls = _gated_network(artifact).calls(part_of(network, items, device, "calibration", progress))
    return LiveCalls(
        known=np.isin(np.array(items.families), manifest.classes),
        unknown=calls.labels == "unknown",
        fake=calls.fake > np.array([manifest.gate.fake_above(source) for source in items.sources]),
    )


def live_model(parent: Parent) -> GatedModel:
    """Return how a parent judges; from features, where it has neither experts nor trained features."""
    artifact, manifest = parent.artifact, parent.artifact.manifest
    by_features = manifest.architecture.frozen and not manifest.experts
    head = FrozenHead(parent.network.cpu(), _gated_network(artifact)) if by_features else None
    return GatedModel(open_session(artifact, threads=1), manifest.gate, manifest.classes, head)


def _gated_network(artifact: Artifact) -> GatedNetwork:
    """Return a release's gate and reference set; of a release without experts."""
    manifest = artifact.manifest
    reference = reference_of(artifact.folder, manifest.architecture, manifest.reference)
    scores = network_scores(reference, frozen=manifest.architecture.frozen)
    return GatedNetwork(manifest.gate, manifest.classes, reference, scores)


def reference_of(
    folder: Path, architecture: Architecture, entries: Sequence[ReferenceEntry]
) -> Reference | None:
    """Read the reference set that lies in a folder; None of a network without forensic features."""
    if not architecture.forensic:
        return None
    ids, families = tuple(e.exemplar for e in entries), tuple(e.family for e in entries)
    return load_reference(folder / REFERENCE, ids, families)
