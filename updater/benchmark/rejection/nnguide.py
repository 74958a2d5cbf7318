"""NNGuide: the energy, guided by the nearest training items.

s(x) = -L(x) * 1/k * (sum of the k largest L(x_j) * cos(h(x), h(x_j)) over the training items x_j), with h
the embedding and L the log-sum-exp of the logits, which is -energy. Park, Jung and Teoh 2023, "Nearest
neighbor guidance for out-of-distribution detection"; k = 10 there.

pytorch-ood's NNGuide agrees with the paper, except that it keeps the training items in float32 and all of
them, where the paper draws 1 % of ImageNet. It holds only where L is positive: of two negative factors the
product would make an item familiar.
"""

import torch
from pytorch_ood.detector import NNGuide

from updater.benchmark.rejection.evidence import EvidenceError, Known, Score, checked


def fit(known: Known, *, neighbours: int = 10) -> Score:
    """Keep the training items. Raises EvidenceError where there are fewer of them than neighbours."""
    if len(known.evidence) < neighbours:
        raise EvidenceError(f"{len(known.evidence)} training items cannot give {neighbours} neighbours")
    detector = NNGuide(encoder=None, head=known.head, k=neighbours)
    detector.fit_features(torch.tensor(known.evidence.embedding), torch.tensor(known.targets))
    return checked(known, lambda evidence: detector.predict_features(torch.tensor(evidence.embedding)))
