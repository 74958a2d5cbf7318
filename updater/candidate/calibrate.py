"""From a trained network to a gate: the reference set, the common scales, the thresholds.

The gate's scales and thresholds are fitted on the calibration shelf, which the network and the
reference set have never seen, so every score is out of fold. Classes weigh the same, or the
thresholds would be those of the largest class; within a class so do groups, since twenty pieces of
one photograph are one witness and not twenty.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from detector.model.network import Network
from detector.model.scores import SCORES, NetworkOutput, ScoreEntry
from detector.release.experts import ExpertContract
from detector.release.manifest import GateParameters, Term
from updater.candidate.evaluate import GatedNetwork, labels_of, unknown_scores
from updater.candidate.gate_inputs import GateInputs, Part, gate_inputs, network_scores
from updater.candidate.reference_set import (
    REFERENCE_ROWS,
    CalibrationError,
    Foreign,
    equal_shares,
    make_reference,
)
from updater.candidate.thresholds import (
    TARGETS,
    LiveCalls,
    Targets,
    fake_threshold,
    keeping_fake,
    keeping_known,
    source_thresholds,
    unknown_threshold,
    video_unknown_threshold,
)
from updater.experts.calibrate import calibrated_experts
from updater.measures import balanced_weights, weighted_quantile
from updater.training.step import Options, is_real

CLIP = 6.0
"""A score counts for at most so many of its scales: one odd score alone makes nothing unknown."""


def calibrate(
    network: Network,
    train: Part,
    held: Part,
    classes: tuple[str, ...],
    *,
    experts: Sequence[ExpertContract] = (),
    options: Options = Options(),  # noqa: B008 - frozen
    fake: Tensor | None = None,
    odds: NDArray[np.float64] | None = None,
    live: LiveCalls | None = None,
    foreign: Foreign | None = None,
    reference_rows: int = REFERENCE_ROWS,
) -> GatedNetwork:
    """Fit the reference set on training items, and on held-back items the experts' weights and the gate.

    train, held: the items, with what the network says of them. classes: of the network, which with `options`
    name its logits. fake: as of `gate_inputs`. odds: as of `calibrated_experts`. live: what the live release
    says of the held-back items, which is kept; None where nothing is live. foreign: reference rows that go on
    from it.

    Raises CalibrationError where no held-back item is real, though a class is, or there are too few.
    """
    if not len(held.items):
        raise CalibrationError("no item is held back for calibration: hold some back")
    if reals(classes).any() and not reals(held.items.families).any():
        raise CalibrationError("no real item is held back for calibration")
    reference = None
    if network.forensics is not None:
        rows = reference_rows - (0 if foreign is None else len(foreign.ids))
        columns = [np.array(of) for of in (train.items.families, train.items.ids, train.items.sources)]
        some = equal_shares(columns[0], columns[1], rows)
        output = NetworkOutput(*(of[some] for of in train.output))
        named: tuple[Sequence[str], ...] = tuple(of[some].tolist() for of in columns)
        if foreign is not None and len(foreign.ids):
            output, named = foreign.before(network, output, *named)
        reference = make_reference(output, *named)
    say = None
    if experts:
        say = calibrated_experts(experts, held.items, held.output.logits, classes, options, odds)
    scores = network_scores(reference, frozen=network.architecture.frozen)
    measured = gate_inputs(held.output, scores, say, fake)
    families, groups, sources = (
        np.array(of) for of in (held.items.families, held.items.groups, held.items.sources)
    )
    gate = fit_gate(measured, families, groups, live, held.items.videos, sources)
    return GatedNetwork(gate, classes, reference, scores, say, fake)


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
    known, and none has thresholds of its own. Of items none of which is real, the gate keeps the share of the
    classes alone.
    """
    real, weights = reals(families), balanced_weights(families, groups)
    gate = common_scales(measured, weights)
    scores = unknown_scores(measured, gate)
    if not real.any():
        threshold = weighted_quantile(scores, weights, 1 - targets.classes_unknown)
        return gate.model_copy(update={"unknown_threshold": threshold})
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
    thresholds = {"unknown_threshold": unknown, "fake_threshold": fake, "video_unknown_threshold": of_videos}
    gate = gate.model_copy(update=thresholds)
    if sources is None:
        return gate
    own = source_thresholds(gate, scores, seen, families, groups, sources, real, live, targets)
    return gate.model_copy(update={"sources": own})


def common_scales(measured: GateInputs, weights: NDArray[np.float64]) -> GateParameters:
    """Fit the scales alone to n calibration items that weigh so much, float64 [n].

    The thresholds stay to be fitted: 0 for unknown, 1 for fake.
    """
    terms = {n: _term(values, weights, SCORES[n]) for n, values in measured.scores.items() if n in SCORES}
    # An expert's score is in units of held-back reals already.
    terms |= {n: Term(median=0.0, scale=1.0, weight=of) for n, of in measured.expert_weights.items()}
    return GateParameters(terms=terms, clip=CLIP, unknown_threshold=0.0, fake_threshold=1.0)


def _term(values: NDArray[np.float32], weights: NDArray[np.float64], entry: ScoreEntry) -> Term:
    if entry.standard:
        return Term(median=0.0, scale=1.0, weight=entry.weight)
    median = weighted_quantile(values, weights, 0.5)
    scale = max(weighted_quantile(values, weights, 0.84) - median, 1e-6)
    return Term(median=median, scale=scale, weight=entry.weight)


def calibration_figures(judge: GatedNetwork, held: Part) -> dict[str, float]:
    """Return how the calibration items themselves fare at the thresholds: figures by name, shares in 0..1."""
    items, measured = held.items, judge.measure(held)
    families, unknown = np.array(items.families), unknown_scores(measured, judge.gate)
    labels = labels_of(unknown, measured.fake_probability, judge.gate, items.videos, items.sources)
    named = np.array(judge.classes)[measured.logits.argmax(1)]
    known_fake = ~reals(families)
    return {
        "calibration_items": float(len(families)),
        "calibration_reals": float((~known_fake).sum()),
        "reals_unknown": float((labels[~known_fake] == "unknown").mean()),
        "reals_fake": float((labels[~known_fake] == "fake").mean()),
        "known_unknown": float(((labels == "unknown") * balanced_weights(families)).sum()),
        "fakes_named": float((named == families)[known_fake].mean()) if known_fake.any() else math.nan,
    }
