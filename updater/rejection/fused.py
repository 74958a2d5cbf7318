"""Fused: the gate of a release.

s(x) = z(E) + z(K1) + 2 * z(d) + 2 * z(e) + 3 * z(t), with E the energy, K1 the log odds of the
pseudo-forgery class, d the novelty in forensic features, e the same in the network's embedding, t its mean
over four groups of those features, each taken alone, and z(v) = (v - median) / (q84 - median) cut to -6..6,
both quantiles of calibration items, every class weighing the same. The scales, the reference set and the sum
are updater/candidate/calibrate.py's and detector/scores.py's, so a benchmark measures what a stream uses;
only that here every calibration item is its own group. Without forensic features z(d), z(e) and z(t) are 0.
"""

import numpy as np
from numpy.typing import NDArray

from updater.candidate.calibrate import Targets, common_scales, item_scores, unknown_scores
from updater.measures import balanced_weights
from updater.rejection.evidence import Evidence, EvidenceError, Known, Score, checked
from updater.rejection.forensic import reference_of


def fit(known: Known) -> Score:
    """Fit the reference set on the training items and the scales on the calibration items.

    Raises EvidenceError where there are none, CalibrationError for fewer than 10 training items.
    """
    if known.calibration is None or known.calibration_targets is None or not len(known.calibration):
        raise EvidenceError("the fused score needs calibration items, which no training has seen")
    reference = reference_of(known) if known.evidence.features.shape[1] else None
    measured = item_scores(known.calibration.output(), reference)
    gate = common_scales(measured, balanced_weights(known.calibration_targets), Targets())

    def formula(evidence: Evidence) -> NDArray[np.float32]:
        return unknown_scores(item_scores(evidence.output(), reference), gate)

    return checked(known, formula)
