"""From a trained network to a gate: the reference set, the common scales, the thresholds.

The gate's scales and thresholds are fitted on the calibration shelf, which the network and the
reference set have never seen, so every score is out of fold. Classes weigh the same, or the
thresholds would be those of the largest class; within a class so do groups, since twenty pieces of
one photograph are one witness and not twenty.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.network import Network
from detector.model.scores import SCORES, ScoreEntry, fuse_scores
from detector.release.artifact import Reference
from detector.release.manifest import GateParameters, Term, decide
from updater.candidate.gate_inputs import GateInputs, output_of, score
from updater.candidate.reference_set import (
    REFERENCE_ROWS,
    CalibrationError,
    Foreign,
    equal_shares,
    make_reference,
)
from updater.candidate.source_thresholds import source_thresholds
from updater.candidate.thresholds import (
    TARGETS,
    LiveCalls,
    Targets,
    fake_threshold,
    keeping_fake,
    keeping_known,
    unknown_threshold,
    video_unknown_threshold,
)
from updater.data.training_data import LabelledCrops
from updater.experts.calibrate import ExpertsSay
from updater.measures import balanced_weights, weighted_quantile
from updater.progress import Progress, no_progress
from updater.training.step import is_real

CLIP = 6.0
"""A score counts for at most so many of its scales: one odd score alone makes nothing unknown."""


def calibrate(
    network: Network,
    train: LabelledCrops,
    calibration: LabelledCrops,
    classes: tuple[str, ...],
    *,
    device: torch.device | None = None,
    experts: ExpertsSay | None = None,
    live: LiveCalls | None = None,
    foreign: Foreign | None = None,
    reference_rows: int = REFERENCE_ROWS,
    progress: Progress = no_progress,
) -> tuple[GateParameters, Reference | None, dict[str, float]]:
    """Fit the reference set on the training items and the gate on the calibration items.

    experts: what they say of the calibration items. live: what the live release says of them,
    which is kept; None where nothing is live. foreign: reference rows that go on from it.

    Returns the gate, the reference set (None for a network without forensic features) and figures
    by name, shares in 0..1: how the calibration items themselves fare at the thresholds. Raises
    CalibrationError where no calibration item is real or a training set is too small.
    """
    device = device or torch.device("cpu")
    families = np.array(calibration.families)
    if not reals(families).any():
        raise CalibrationError("no real item is held back for calibration")
    reference = None
    if network.forensics is not None:
        rows = reference_rows - (0 if foreign is None else len(foreign.ids))
        some = train.take(equal_shares(np.array(train.families), np.array(train.ids), rows))
        output = output_of(network, some, device, "reference", progress)
        named: tuple[Sequence[str], ...] = (some.families, some.ids, some.sources)
        if foreign is not None and len(foreign.ids):
            output, named = foreign.before(network, output, *named)
        reference = make_reference(output, *named)
    measured = score(network, reference, calibration, device, progress, experts)
    groups, sources = np.array(calibration.groups), np.array(calibration.sources)
    gate = fit_gate(measured, families, groups, live, calibration.videos, sources)
    return gate, reference, _figures(measured, calibration, classes, gate)


def reals(families: Sequence[str] | NDArray[np.str_]) -> NDArray[np.bool_]:
    """Return which items are of a class of real media, bool [n]."""
    return np.array([is_real(str(family)) for family in families], bool)


def fit_gate(
    measured: GateInputs,
    families: NDArray[np.str_],
    groups: NDArray[np.str_],
    live: LiveCalls | None = None,
    videos: NDArray[np.bool_] | None = None,
    sources: NDArray[np.str_] | None = None,
    targets: Targets = TARGETS,
) -> GateParameters:
    """Fit scales and thresholds to the scores of n calibration items; their classes and groups, str [n].

    live: what the live release says of the items, which is kept; None where nothing is live. videos: which of
    the items are videos, bool [n]; None: none is known to be one. sources: of each, str [n]; None: none is
    known, and none has thresholds of its own.
    """
    real = reals(families)
    gate = common_scales(measured, balanced_weights(families, groups))
    scores = unknown_scores(measured, gate)
    # The shares hold of all reals, and where each source weighs the same: a new one is not outweighed.
    weighed, seen = (families,) if sources is None else (families, sources), measured.fake_probability
    unknown = max(unknown_threshold(scores, families, groups, by, real, targets) for by in weighed)
    fake = max(fake_threshold(seen, groups, by, real, targets) for by in weighed)
    if live is not None:
        unknown = max(unknown, keeping_known(scores, families, groups, live))
        kept = (keeping_fake(seen, families, groups, by, real, live, targets.reals_fake) for by in weighed)
        fake = min(fake, max(kept))
    of_videos = None
    if videos is not None:
        chosen = real & videos
        of_videos = video_unknown_threshold(
            scores[chosen], groups[chosen], unknown, reals=targets.reals_unknown
        )
    found = {"unknown_threshold": unknown, "fake_threshold": fake, "video_unknown_threshold": of_videos}
    gate = gate.model_copy(update=found)
    if sources is None:
        return gate
    own = source_thresholds(gate, scores, seen, families, groups, sources, real, live, targets)
    return gate.model_copy(update={"sources": own})


def common_scales(measured: GateInputs, weights: NDArray[np.float64]) -> GateParameters:
    """Fit the scales alone to n calibration items that weigh so much, float64 [n].

    The thresholds stay to be fitted: 0 for unknown, 1 for fake.
    """
    return GateParameters(
        terms={
            name: _term(values, weights, SCORES[name])
            for name, values in measured.scores.items()
            if name in SCORES
        }
        # An expert's score is in units of held-back reals already.
        | {name: Term(median=0.0, scale=1.0, weight=of) for name, of in measured.expert_weights.items()},
        clip=CLIP,
        unknown_threshold=0.0,
        fake_threshold=1.0,
    )


def unknown_scores(measured: GateInputs, gate: GateParameters) -> NDArray[np.float32]:
    """Return the gate's unknown score of each item, float32 [n]."""
    found = {name: torch.from_numpy(values) for name, values in measured.scores.items()}
    return np.asarray(fuse_scores(found, gate).numpy(), np.float32)


def labels_of(
    unknown: NDArray[np.floating[Any]],
    fake_probability: NDArray[np.floating[Any]],
    gate: GateParameters,
    videos: NDArray[np.bool_] | None = None,
    sources: Sequence[str] | NDArray[np.str_] | None = None,
) -> NDArray[np.str_]:
    """Return each item's label, str [n], by its unknown score and its fake probability, floats [n] each.

    videos: which items are videos, bool [n]; None: none is known to be one. sources: of each item; None: none
    is known, and all are judged by the pooled thresholds.
    """
    kinds = np.zeros(len(unknown), bool) if videos is None else videos
    of = [""] * len(unknown) if sources is None else sources
    each = zip(unknown, fake_probability, kinds, of, strict=True)
    return np.array(
        [decide(float(u), float(f), gate, video=bool(video), source=str(s)) for u, f, video, s in each], str
    )


def _term(values: NDArray[np.float32], weights: NDArray[np.float64], entry: ScoreEntry) -> Term:
    if entry.standard:
        return Term(median=0.0, scale=1.0, weight=entry.weight)
    median = weighted_quantile(values, weights, 0.5)
    scale = max(weighted_quantile(values, weights, 0.84) - median, 1e-6)
    return Term(median=median, scale=scale, weight=entry.weight)


def _figures(
    measured: GateInputs, items: LabelledCrops, classes: tuple[str, ...], gate: GateParameters
) -> dict[str, float]:
    families, unknown = np.array(items.families), unknown_scores(measured, gate)
    labels = labels_of(unknown, measured.fake_probability, gate, items.videos, items.sources)
    named = np.array(classes)[measured.logits.argmax(1)]
    known_fake = ~reals(families)
    return {
        "calibration_items": float(len(families)),
        "calibration_reals": float((~known_fake).sum()),
        "reals_unknown": float((labels[~known_fake] == "unknown").mean()),
        "reals_fake": float((labels[~known_fake] == "fake").mean()),
        "known_unknown": float(((labels == "unknown") * balanced_weights(families)).sum()),
        "fakes_named": float((named == families)[known_fake].mean()) if known_fake.any() else math.nan,
    }
