"""Novelty: the gate's distance to the reference set, alone.

s(x) = mean_j |w(x) - w_j| / mean_j reach_j over the 5 nearest w_j of the reference set, with w the whitened
forensic features and reach_j the mean distance of w_j to its own 5 nearest: about 1 among familiar media.
The simplest local outlier factor (Breunig et al. 2000, "LOF: identifying density-based local outliers");
it is detector/scores.py's `novelty`, as the exported graph computes it.
"""

import torch

from detector import scores
from updater.rejection.evidence import Known, Score, checked
from updater.rejection.forensic import reference_of


def fit(known: Known) -> Score:
    """Fit the whitening and the reach.

    Raises EvidenceError where the network has no forensic features, CalibrationError for fewer than 10 items.
    """
    reference = reference_of(known)
    rows = torch.from_numpy(reference.features)
    reach = scores.reference_reach(rows)
    return checked(
        known,
        lambda evidence: scores.novelty(torch.from_numpy(reference.whiten(evidence.features)), rows, reach)[
            0
        ],
    )
