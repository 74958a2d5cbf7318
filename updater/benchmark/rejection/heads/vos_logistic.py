"""VOS with the paper's own loss: a logistic layer tells the energy of items from that of outliers.

Du et al. 2022, "VOS: learning what you don't know by virtual outlier synthesis". The outliers are vos.py's,
of all classes. With E(z) = -log sum_k w_k exp f_k(z), w >= 0 learnt, and phi(E) = a E + b the loss is

    CE(f(z), y) + 0.1 ( mean over outliers of softplus(-phi(E)) + mean over items of softplus(phi(E)) )

and the score is phi(E). The paper trains the whole network so; here a head that begins as the classifier is
trained on frozen embeddings, old and new classes alike. Means and covariance are of all training items, once
(the paper keeps a queue of 1,000 a class). pytorch-ood's loss, like the published code, takes one mean over
items and outliers together in place of two, and lets outliers in only when each class has filled its queue:
hence our own.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from updater.benchmark.rejection.evidence import Evidence, Known, Score, checked
from updater.benchmark.rejection.heads.fine_tuning import PLAN, FineTuning, extra_head, fine_tune, pick
from updater.benchmark.rejection.heads.vos import gaussians, virtual_outliers

_WEIGHT = 0.1


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head and its logistic layer; the items of old classes, bool [n], are not told apart."""
    embedding, target = torch.tensor(known.evidence.embedding), torch.tensor(known.targets)
    means, factor = gaussians(embedding, target)
    head, weights = extra_head(known), torch.ones(known.head_weight.shape[0], requires_grad=True)
    slope, offset = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
    everything = torch.arange(len(target))

    def unfamiliar(rows: Tensor) -> Tensor:
        return slope * weighted_energy(head(rows), weights) + offset

    def loss(generator: torch.Generator) -> Tensor:
        items = pick(generator, everything, plan.batch)
        rows = embedding[items]
        outliers = virtual_outliers(generator, means, factor)
        apart = uncertainty_loss(unfamiliar(rows), unfamiliar(outliers))
        return F.cross_entropy(head(rows), target[items]) + _WEIGHT * apart

    fine_tune([*head.parameters(), weights, slope, offset], loss, plan, seed)

    def score(evidence: Evidence) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(unfamiliar(torch.tensor(evidence.embedding)).numpy())

    return checked(known, score)


def weighted_energy(logits: Tensor, weights: Tensor) -> Tensor:
    """Return -log sum_k max(w_k, 0) exp f_k, float32 [M]; logits: float32 [M, K]; weights: float32 [K]."""
    top = logits.amax(1, keepdim=True)
    total = (F.relu(weights) * torch.exp(logits - top)).sum(1).clamp_min(1e-30)
    return -(top[:, 0] + total.log())


def uncertainty_loss(familiar: Tensor, outliers: Tensor) -> Tensor:
    """Return mean softplus(-phi of outliers) + mean softplus(phi of items), a scalar; float32 [.] each."""
    return F.softplus(-outliers).mean() + F.softplus(familiar).mean()
