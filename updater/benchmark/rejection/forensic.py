"""Post-hoc scores that a release has: of forensic features, its gate, and each of the gate's scores alone."""

from functools import partial

import numpy as np
from scipy.spatial.distance import cdist

from detector.model.scores import SCORES, NetworkOutput
from detector.release.artifact import Reference
from updater.benchmark.rejection.embedding import distances_to
from updater.benchmark.rejection.evidence import (
    Evidence,
    EvidenceError,
    Fit,
    FitSet,
    Score,
    as_score,
    float64,
)
from updater.candidate.calibrate import common_scales
from updater.candidate.evaluate import unknown_scores
from updater.candidate.gate_inputs import gate_inputs, network_scores
from updater.candidate.reference_set import REFERENCE_ROWS, equal_shares, make_reference
from updater.measures import balanced_weights, within_class_whitening


def reference_of(known: FitSet) -> Reference:
    """Return the reference set that a release would get from the training items.

    It is whitened by their within-class covariance and holds 1,500 of them at most, each class having an
    equal share. Raises EvidenceError where the network has no forensic features, CalibrationError (also a
    ValueError) for fewer than 10 items.
    """
    if not known.evidence.features.shape[1]:
        raise EvidenceError("this score reads forensic features, and the network has none")
    names = [known.names[target] if known.names else str(target) for target in known.targets]
    # A release orders a class's items by their digests. Here their order is the caller's.
    places = [f"{place:08d}" for place in range(len(names))]
    chosen = equal_shares(np.array(names), np.array(places), REFERENCE_ROWS)
    output = NetworkOutput(*(part[chosen] for part in known.evidence.output()))
    return make_reference(output, [names[i] for i in chosen], [places[i] for i in chosen])


def fit_forensic_knn(known: FitSet, *, neighbours: int = 5) -> Score:
    """kNN in forensic features: the mean distance to the nearest reference items.

    s(x) = 1/k * (sum of the k smallest |w(x) - w_j|), with w the forensic features whitened by their
    within-class covariance and w_j those of the reference set; k = 5, the gate's. In standard deviations
    within a class.

    It is the numerator of the gate's novelty (detector/model/scores.py), found by FAISS's exact
    search; that divides it by the distances of these reference items among themselves. pytorch-ood's KNN
    differs: it takes the k-th distance, of normalised rows.

    Fit the whitening and index the reference set; `neighbours` is k.

    Raises EvidenceError where the network has no forensic features or there are fewer items than
    neighbours, CalibrationError for fewer than 10 items.
    """
    reference = reference_of(known)
    distances = distances_to(reference.features, neighbours)
    return as_score(lambda evidence: distances(reference.whiten(evidence.features)).mean(1, dtype=np.float64))


def fit_mahalanobis(known: FitSet) -> Score:
    """Mahalanobis: the squared distance to the nearest class's mean under one shared covariance.

    s(x) = min_c (g(x) - mu_c)^T S^-1 (g(x) - mu_c), with g the forensic features, mu_c a class's mean and S
    the within-class covariance. Lee et al. 2018, "A simple unified framework for detecting
    out-of-distribution samples and adversarial attacks", eq. 1 and 2, without its input perturbation and its
    ensemble of layers, and on forensic features instead of a layer. S is shrunk (Ledoit and Wolf 2004), the
    paper's is not: here are hardly more items than features. About F for familiar media.

    pytorch-ood's Mahalanobis differs: its S is the sum over the items and not their mean, not shrunk, and it
    returns half of the distance.

    Fit S and the means. Raises EvidenceError where the network has no forensic features.
    """
    raw, targets = known.evidence.features, known.targets
    if not raw.shape[1]:
        raise EvidenceError("this score reads forensic features, and the network has none")
    # In whitened coordinates S is the identity.
    centre, whitening = (part.astype(np.float64) for part in within_class_whitening(raw, targets.astype(str)))
    means = np.stack([(raw[targets == c].mean(0) - centre) @ whitening for c in np.unique(targets)])
    return as_score(lambda e: cdist((e.features - centre) @ whitening, means, "sqeuclidean").min(1))


def fit_fused(known: FitSet) -> Score:
    """Fused: the gate of a release.

    s(x) = sum over the gate's scores of weight * z(score), with z(v) = (v - median) / (q84 - median) cut to
    -6..6, both quantiles of calibration items, every class weighing the same. Scores, weights and the sum are
    those of detector/model/scores.py, the scales and the reference set those of updater/candidate, so that a
    benchmark measures what a stream uses; only here every calibration item is its own group. Without forensic
    features the scores that search the reference set are not among them.

    Fit the reference set on the training items and the scales on the calibration items.

    Raises EvidenceError where there are none, CalibrationError for fewer than 10 training items.
    """
    if known.calibration is None or known.calibration_targets is None or not len(known.calibration):
        raise EvidenceError("the fused score needs calibration items, which no training has seen")
    reference = reference_of(known) if known.evidence.features.shape[1] else None
    scores = network_scores(reference, frozen=False)
    measured = gate_inputs(known.calibration.output(), scores)
    gate = common_scales(measured, balanced_weights(known.calibration_targets))
    return as_score(lambda evidence: unknown_scores(gate_inputs(evidence.output(), scores), gate))


def fit_score(name: str, known: FitSet) -> Score:
    """Fit one score of the gate on the training items, and on their reference set where it reads that.

    It is the function of that name in the exported graph; detector/model/scores.py has the formulas and their
    sources. Raises EvidenceError where it reads the reference set and the network has no forensic
    features, CalibrationError where it does and there are fewer than 10 items.
    """
    score = SCORES[name].fit(None) or SCORES[name].fit(reference_of(known))
    if score is None:
        raise EvidenceError(f"{name} tells forgeries from reals, and not both are among the known classes")
    return as_score(lambda evidence: score(_output(evidence)))


FITS: dict[str, Fit] = {name: partial(fit_score, name) for name in SCORES}


def _output(evidence: Evidence) -> NetworkOutput:
    """Return the evidence as a network's output: the logits in float64, where no two scores tie."""
    return evidence.output()._replace(
        logits=float64(evidence.logits), pseudo_logit=float64(evidence.pseudo_logit)
    )
