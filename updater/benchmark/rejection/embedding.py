"""Post-hoc scores by the nearest training items in the embedding: kNN, NNGuide, Relation."""

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pytorch_ood.detector import NNGuide
from torch import Tensor

from updater.benchmark.rejection.evidence import Evidence, EvidenceError, FitSet, Score, as_score, float64


def fit_embedding_knn(known: FitSet, *, neighbours: int = 5) -> Score:
    """kNN in the embedding: the distance to the k-th nearest training item.

    s(x) = |z - z_(k)|, with z = h(x) / |h(x)| and z_(k) the k-th nearest z of the training items, in 0..2.
    Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors", section 3. The paper takes k
    = 50 for CIFAR-10 with its 5,000 images a class; here a class has some tens, so k is 5, as in the gate.

    FAISS searches exactly; pytorch-ood's KNN gives the same by scikit-learn.

    Index the training items; `neighbours` is k. Raises EvidenceError where there are fewer of them.
    """
    if len(known.evidence) < neighbours:
        raise EvidenceError(f"{len(known.evidence)} training items cannot give {neighbours} neighbours")
    index = faiss.IndexFlatL2(known.evidence.embedding.shape[1])
    index.add(_unit(known.evidence))

    def formula(evidence: Evidence) -> NDArray[np.float32]:
        squared, _ = index.search(_unit(evidence), neighbours)
        return np.sqrt(np.maximum(squared[:, -1], 0))

    return as_score(formula)


def _unit(evidence: Evidence) -> NDArray[np.float32]:
    length = np.linalg.norm(evidence.embedding, axis=1, keepdims=True)
    return np.ascontiguousarray(evidence.embedding / np.maximum(length, 1e-12), np.float32)


def fit_nnguide(known: FitSet, *, neighbours: int = 10) -> Score:
    """NNGuide: the energy, guided by the nearest training items.

    s(x) = -L(x) * 1/k * (sum of the k largest L(x_j) * cos(h(x), h(x_j)) over the training items x_j), with h
    the embedding and L the log-sum-exp of the logits, which is -energy. Park, Jung and Teoh 2023, "Nearest
    neighbor guidance for out-of-distribution detection"; k = 10 there.

    pytorch-ood's NNGuide agrees with the paper, except that it keeps the training items in float32 and all of
    them, where the paper draws 1 % of ImageNet. It holds only where L is positive: of two negative factors
    the product would make an item familiar.

    Keep the training items. Raises EvidenceError where there are fewer of them than neighbours.
    """
    if len(known.evidence) < neighbours:
        raise EvidenceError(f"{len(known.evidence)} training items cannot give {neighbours} neighbours")
    detector = NNGuide(encoder=None, head=known.head, k=neighbours)
    detector.fit_features(torch.tensor(known.evidence.embedding), torch.tensor(known.targets))
    return as_score(lambda evidence: detector.predict_features(torch.tensor(evidence.embedding)))


_ROWS_AT_ONCE = 512


def fit_relation(known: FitSet, *, power: float = 1.0, least_edge: float = 0.03) -> Score:
    """Relation: how strongly an item is tied to the training items in embedding and answer.

    s(x) = -sum_j k(x, x_j)^t over the training items x_j with k(x, x_j) above 0.03, and
    k(x, x_j) = max(0, cos(h(x), h(x_j))) * p(x)^T p(x_j) in 0..1, with h the embedding and p the softmax.
    Kim, Yun and Song 2023, "Neural relation graph: a unified framework for identifying label noise and
    outlier data", section 3. Their published code has t = 1 for outliers, 4 for wrong labels, and leaves
    out the edges up to 0.03, as OpenOOD's does.

    pytorch-ood has no such method.

    Keep the training items. `power` is t; `least_edge` = 0 gives the sum over all of them.
    """
    embeddings, posteriors = _normalise(known.evidence)

    def formula(evidence: Evidence) -> Tensor:
        h, p = _normalise(evidence)
        sums = torch.zeros(len(h), dtype=torch.float64)
        for first in range(0, len(h), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            kernel = (h[rows] @ embeddings.T).clamp_min(0) * (p[rows] @ posteriors.T)
            sums[rows] = -torch.where(kernel > least_edge, kernel.pow(power), 0).sum(1)
        return sums

    return as_score(formula)


def _normalise(evidence: Evidence) -> tuple[Tensor, Tensor]:
    return F.normalize(float64(evidence.embedding), dim=1), torch.softmax(float64(evidence.logits), 1)
