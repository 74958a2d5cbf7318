"""What the live release says of a candidate's calibration items, by its network as it was trained."""

import numpy as np

from detector.release.artifact import REFERENCE
from detector.release.reference import load_reference
from updater.candidate.calibrate import fake_probabilities_around, labels_of, score, unknown_scores
from updater.candidate.picture import vote_on
from updater.candidate.plan import Plan
from updater.candidate.thresholds import LiveCalls
from updater.progress import Progress


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
