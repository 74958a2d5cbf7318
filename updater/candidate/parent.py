"""The live release, read for training on: its network, and its picture branch where it has one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from detector.model.network import Network, PictureBranch
from detector.release.artifact import REFERENCE, WEIGHTS, Artifact, load_reference
from detector.release.manifest import FEATURE_VERSION, Architecture, Picture
from updater.candidate.calibrate import fake_probabilities_around, labels_of, score, unknown_scores
from updater.candidate.picture import vote_on
from updater.candidate.plan import CandidateRefusedError, Parent, Plan
from updater.candidate.thresholds import LiveCalls
from updater.progress import Progress
from updater.training.weights import PICTURE


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
    picture = architecture.picture
    branch = branch_of(load_file(weights), picture, manifest.classes) if picture else None
    return Parent(artifact, network, branch)


def load_network(weights: Path, architecture: Architecture, classes: tuple[str, ...]) -> Network:
    """Load a network without its picture branch on the CPU, in evaluation mode."""
    network = Network(architecture, len(classes))
    held = load_file(weights)
    network.load_state_dict({k: value for k, value in held.items() if not k.startswith(PICTURE)})
    return network.eval()


def branch_of(held: Mapping[str, Tensor], picture: Picture, classes: tuple[str, ...]) -> PictureBranch | None:
    """Return the picture branch among a release's weights, on the CPU; None where none was kept yet."""
    state = {k.removeprefix(PICTURE): value for k, value in held.items() if k.startswith(PICTURE)}
    if not state:
        return None
    branch = PictureBranch(picture, len(classes))
    branch.load_state_dict(state)
    return branch


def live_calls(plan: Plan, progress: Progress) -> LiveCalls | None:
    """Return what the plan's parent says of the calibration items; None where nothing is live."""
    if plan.parent is None:
        return None
    artifact, items = plan.parent.artifact, plan.splits.calibration
    manifest, reference = artifact.manifest, None
    if manifest.architecture.forensic:
        ids = tuple(entry.exemplar for entry in manifest.reference)
        families = tuple(entry.family for entry in manifest.reference)
        reference = load_reference(artifact.folder / REFERENCE, ids, families)
    network = plan.parent.network.to(plan.device)
    measured = score(network, reference, items, plan.device, progress, vote_on(plan.parent.branch, items))
    fake = fake_probabilities_around(measured, manifest.gate)
    labels = labels_of(unknown_scores(measured, manifest.gate), fake, manifest.gate, items.videos)
    return LiveCalls(
        known=np.isin(np.array(items.families), manifest.classes),
        unknown=labels == "unknown",
        fake=fake > manifest.gate.fake_threshold,
    )
