"""Supervised contrast: an embedding in which items of one class lie together and apart from all others."""

import torch
import torch.nn.functional as F
from torch import Tensor

_TEMPERATURE = 0.1


def supervised_contrast(embedding: Tensor, classes: Tensor, temperature: float = _TEMPERATURE) -> Tensor:
    """Return the supervised contrastive loss of a batch, a scalar in nats.

    embedding: float32 [n, D], of any length; classes: int64 [n]. With z the embedding at length 1 and P(i)
    the others of i's class, the mean over the items i that have such others of

        -1/|P(i)| * sum over p in P(i) of log( exp(z_i z_p / T) / sum over a ≠ i of exp(z_i z_a / T) ).

    Khosla et al. 2020, "Supervised contrastive learning", eq. 2 (L_out). 0 where no class has two items.
    """
    unit = F.normalize(embedding, dim=1)
    likeness = unit @ unit.T / temperature
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    log_share = likeness - likeness.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (classes[:, None] == classes[None]) & ~itself
    count = positive.sum(1)
    some = count > 0
    if not some.any():
        return embedding.sum() * 0
    return -((log_share * positive).sum(1)[some] / count[some]).mean()
