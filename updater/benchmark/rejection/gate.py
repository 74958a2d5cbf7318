"""The release's gate as a post-hoc score, and each of its scores alone."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from detector.model.scores import SCORES, NetworkOutput
from updater.benchmark.rejection.evidence import Evidence, EvidenceError, Fit, Known, Score, checked, float64
from updater.benchmark.rejection.forensic import reference_of
from updater.candidate.calibrate import common_scales, gate_inputs, unknown_scores
from updater.measures import balanced_weights


def fit_fused(known: Known) -> Score:
    """Fused: the gate of a release.

    s(x) = sum over the gate's scores of weight * z(score), with z(v) = (v - median) / (q84 - median) cut to
    -6..6, both quantiles of calibration items, every class weighing the same; less the level around the item
    (detector/model/graph.py). Scores, weights and the sum are those of detector/model/scores.py, the
    scales and the reference set those of updater/candidate, so that a benchmark measures what a stream uses;
    only here every calibration item is its own group. Without forensic features the scores that search the
    reference set are not among them.

    Fit the reference set on the training items and the scales on the calibration items.

    Raises EvidenceError where there are none, CalibrationError for fewer than 10 training items.
    """
    if known.calibration is None or known.calibration_targets is None or not len(known.calibration):
        raise EvidenceError("the fused score needs calibration items, which no training has seen")
    reference = reference_of(known) if known.evidence.features.shape[1] else None
    measured = gate_inputs(known.calibration.output(), reference)
    gate = common_scales(measured, balanced_weights(known.calibration_targets))

    def formula(evidence: Evidence) -> NDArray[np.float32]:
        return unknown_scores(gate_inputs(evidence.output(), reference), gate)

    return checked(known, formula)


def fit_score(name: str, known: Known) -> Score:
    """Fit one score of the gate on the training items, and on their reference set where it reads that.

    It is the function of that name in the exported graph; detector/model/scores.py has the formulas and their
    sources. Raises EvidenceError where it reads the reference set and the network has no forensic
    features, CalibrationError where it does and there are fewer than 10 items.
    """
    score = SCORES[name].fit(None) or SCORES[name].fit(reference_of(known))
    assert score is not None
    return checked(known, lambda evidence: score(_output(evidence)))


FITS: dict[str, Fit] = {name: partial(fit_score, name) for name in SCORES}


def _output(evidence: Evidence) -> NetworkOutput:
    """Return the evidence as a network's output: the logits in float64, where no two scores tie."""
    return evidence.output()._replace(
        logits=float64(evidence.logits), pseudo_logit=float64(evidence.pseudo_logit)
    )
