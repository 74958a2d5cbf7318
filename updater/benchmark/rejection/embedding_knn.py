"""kNN in the embedding: the distance to the k-th nearest training item.

s(x) = |z - z_(k)|, with z = h(x) / |h(x)| and z_(k) the k-th nearest z of the training items, in 0..2. Sun et
al. 2022, "Out-of-distribution detection with deep nearest neighbors", section 3. The paper takes k = 50 for
CIFAR-10 with its 5,000 images a class; here a class has some tens, so k is 5, as in the gate.

FAISS searches exactly; pytorch-ood's KNN gives the same by scikit-learn.
"""

import faiss
import numpy as np
from numpy.typing import NDArray

from updater.benchmark.rejection.evidence import Evidence, EvidenceError, Known, Score, checked


def fit(known: Known, *, neighbours: int = 5) -> Score:
    """Index the training items; `neighbours` is k. Raises EvidenceError where there are fewer of them."""
    if len(known.evidence) < neighbours:
        raise EvidenceError(f"{len(known.evidence)} training items cannot give {neighbours} neighbours")
    index = faiss.IndexFlatL2(known.evidence.embedding.shape[1])
    index.add(_unit(known.evidence))

    def formula(evidence: Evidence) -> NDArray[np.float32]:
        squared, _ = index.search(_unit(evidence), neighbours)
        return np.sqrt(np.maximum(squared[:, -1], 0))

    return checked(known, formula)


def _unit(evidence: Evidence) -> NDArray[np.float32]:
    length = np.linalg.norm(evidence.embedding, axis=1, keepdims=True)
    return np.ascontiguousarray(evidence.embedding / np.maximum(length, 1e-12), np.float32)
