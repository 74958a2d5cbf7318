"""Mahalanobis: the squared distance to the nearest class's mean under one shared covariance.

s(x) = min_c (g(x) - mu_c)^T S^-1 (g(x) - mu_c), with g the forensic features, mu_c a class's mean and S the
within-class covariance. Lee et al. 2018, "A simple unified framework for detecting out-of-distribution
samples and adversarial attacks", eq. 1 and 2, without its input perturbation and its ensemble of layers, and
on forensic features instead of a layer. S is shrunk (Ledoit and Wolf 2004), the paper's is not: here are
hardly more items than features. About F for familiar media.

pytorch-ood's Mahalanobis differs: its S is the sum over the items and not their mean, not shrunk, and it
returns half of the distance.
"""

import numpy as np
from numpy.typing import NDArray

from updater.benchmark.rejection.evidence import Evidence, EvidenceError, Known, Score, checked
from updater.whitening import within_class_whitening


def fit(known: Known) -> Score:
    """Fit S and the means. Raises EvidenceError where the network has no forensic features."""
    raw, targets = known.evidence.features, known.targets
    if not raw.shape[1]:
        raise EvidenceError("this score reads forensic features, and the network has none")
    # In whitened coordinates S is the identity.
    centre, whitening = (part.astype(np.float64) for part in within_class_whitening(raw, targets.astype(str)))
    means = np.stack([(raw[targets == c].mean(0) - centre) @ whitening for c in np.unique(targets)])

    def formula(evidence: Evidence) -> NDArray[np.float64]:
        whitened = (evidence.features - centre) @ whitening
        squared = np.stack([np.square(whitened - mean).sum(1) for mean in means])
        nearest: NDArray[np.float64] = squared.min(0)
        return nearest

    return checked(known, formula)
