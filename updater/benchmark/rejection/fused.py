"""Fused: the gate of a release.

s(x) = sum over the gate's scores of weight * z(score), with z(v) = (v - median) / (q84 - median) cut to
-6..6, both quantiles of calibration items, every class weighing the same; less the level around the item
(detector/model/surroundings.py). The scores and their weights are
registry.py's beside it, the scales and the reference set updater/candidate/calibrate.py's, and the sum
is fused.py's beside it, so a benchmark measures what a stream uses; only that here every calibration
item is its own group. Without forensic features the scores that search the reference set are not among them.
"""

import numpy as np
from numpy.typing import NDArray

from updater.benchmark.rejection.evidence import Evidence, EvidenceError, Known, Score, checked
from updater.benchmark.rejection.forensic import reference_of
from updater.candidate.calibrate import Targets, common_scales, gate_inputs, unknown_scores
from updater.measures import balanced_weights


def fit(known: Known) -> Score:
    """Fit the reference set on the training items and the scales on the calibration items.

    Raises EvidenceError where there are none, CalibrationError for fewer than 10 training items.
    """
    if known.calibration is None or known.calibration_targets is None or not len(known.calibration):
        raise EvidenceError("the fused score needs calibration items, which no training has seen")
    reference = reference_of(known) if known.evidence.features.shape[1] else None
    measured = gate_inputs(known.calibration.output(), reference)
    gate = common_scales(measured, balanced_weights(known.calibration_targets), Targets())

    def formula(evidence: Evidence) -> NDArray[np.float32]:
        return unknown_scores(gate_inputs(evidence.output(), reference), gate)

    return checked(known, formula)
