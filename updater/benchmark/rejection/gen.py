"""GEN: the generalised entropy of the softmax.

s(x) = sum over the M largest p_c of p_c^gamma * (1 - p_c)^gamma, with p = softmax(f(x)); 0 for a certain
answer. Liu, Lochman and Zach 2023, "GEN: Pushing the limits of softmax-based out-of-distribution
detection"; gamma = 0.1 and, for the 1,000 classes of ImageNet, M = 100 there.

pytorch-ood's GEN differs: it clamps p to [1e-7, 1 - 1e-7]. Because 1e-7^0.1 is still 0.2, it gives
all answers the same score whose other logits are 16 or more below the first. It also takes the mean of
the M terms, which changes no order.
"""

import torch
from torch import Tensor

from updater.benchmark.rejection.evidence import Known, Score, checked, float64


def fit(known: Known, *, gamma: float = 0.1, largest: int = 100) -> Score:
    """Nothing is fitted. `largest` is M; where there are fewer classes, all of them count."""

    def formula(logits: Tensor) -> Tensor:
        p = torch.softmax(logits, 1).topk(min(largest, logits.shape[1]), dim=1).values
        return (p * (1 - p)).pow(gamma).sum(1)

    return checked(known, lambda evidence: formula(float64(evidence.logits)))
