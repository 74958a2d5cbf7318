"""kNN in forensic features: the mean distance to the nearest reference items.

s(x) = 1/k * (sum of the k smallest |w(x) - w_j|), with w the forensic features whitened by their within-class
covariance and w_j those of the reference set; k = 5, the gate's. In standard deviations within a class.

It is the numerator of the gate's novelty (detector/model/scores.py), found by FAISS's exact search;
that divides it by the distances of these reference items among themselves. pytorch-ood's KNN differs:
it takes the k-th distance, of normalised rows.
"""

import faiss
import numpy as np
from numpy.typing import NDArray

from updater.benchmark.rejection.evidence import Evidence, EvidenceError, Known, Score, checked
from updater.benchmark.rejection.forensic import reference_of


def fit(known: Known, *, neighbours: int = 5) -> Score:
    """Fit the whitening and index the reference set; `neighbours` is k.

    Raises EvidenceError where the network has no forensic features or there are fewer items than
    neighbours, CalibrationError for fewer than 10 items.
    """
    reference = reference_of(known)
    if len(reference.features) < neighbours:
        raise EvidenceError(f"{len(reference.features)} reference items cannot give {neighbours} neighbours")
    index = faiss.IndexFlatL2(reference.features.shape[1])
    index.add(np.ascontiguousarray(reference.features))

    def formula(evidence: Evidence) -> NDArray[np.float64]:
        squared, _ = index.search(np.ascontiguousarray(reference.whiten(evidence.features)), neighbours)
        mean: NDArray[np.float64] = np.sqrt(np.maximum(squared, 0)).mean(1, dtype=np.float64)
        return mean

    return checked(known, formula)
