"""Relation: how strongly an item is tied to the training items in embedding and answer.

s(x) = -sum_j k(x, x_j)^t over the training items x_j with k(x, x_j) above 0.03, and
k(x, x_j) = max(0, cos(h(x), h(x_j))) * p(x)^T p(x_j) in 0..1, with h the embedding and p the softmax.
Kim, Yun and Song 2023, "Neural relation graph: a unified framework for identifying label noise and
outlier data", section 3. Their published code has t = 1 for outliers, 4 for wrong labels, and leaves
out the edges up to 0.03, as OpenOOD's does.

pytorch-ood has no such method.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from updater.benchmark.rejection.evidence import Evidence, Known, Score, checked, float64

_ROWS_AT_ONCE = 512


def fit(known: Known, *, power: float = 1.0, least_edge: float = 0.03) -> Score:
    """Keep the training items. `power` is t; `least_edge` = 0 gives the sum over all of them."""
    embeddings, posteriors = _normalised(known.evidence)

    def formula(evidence: Evidence) -> Tensor:
        h, p = _normalised(evidence)
        found = torch.zeros(len(h), dtype=torch.float64)
        for first in range(0, len(h), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            kernel = (h[rows] @ embeddings.T).clamp_min(0) * (p[rows] @ posteriors.T)
            found[rows] = -torch.where(kernel > least_edge, kernel.pow(power), 0).sum(1)
        return found

    return checked(known, formula)


def _normalised(evidence: Evidence) -> tuple[Tensor, Tensor]:
    return F.normalize(float64(evidence.embedding), dim=1), torch.softmax(float64(evidence.logits), 1)
