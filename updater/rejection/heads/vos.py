"""VOS: virtual outliers at the rim of each class's Gaussian, told apart by their energy (Du et al. 2022).

"VOS: learning what you don't know by virtual outlier synthesis". Each class is a Gaussian in the embedding,
with one covariance for all; an outlier is the least likely of many samples of it. With
E(z) = -log sum_k w_k exp f_k(z), w >= 0 learnt, and phi(E) = a E + b, a logistic layer, the loss is

    CE(f(z), y) + 0.1 ( mean over outliers of softplus(-phi(E)) + mean over items of softplus(phi(E)) )

and the score is phi(E). The paper trains the whole network so; here, as in OpenCIL, a head of its own that
begins as the classifier is trained on frozen embeddings. Tiny, stated: the least likely of 1,000 samples a
class and step (10,000 in the paper), means and covariance from all training items, once (the paper keeps a
queue of 1,000 a class). pytorch-ood's loss, like the published code, takes one mean over items and outliers
together in place of two, and lets outliers in only when each class has filled its queue: hence our own.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from updater.rejection.evidence import Evidence, Known, Score, checked
from updater.rejection.heads.fine_tuning import PLAN, FineTuning, extra_head, fine_tune, pick

SAMPLES = 1000
_WEIGHT = 0.1
_RIDGE = 1e-4


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


def gaussians(embedding: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes' means, float32 [C, D], and the Cholesky factor [D, D] of their common covariance.

    embedding: float32 [n, D]; target: int64 [n]; C counts the classes that occur. The covariance is the mean
    of (z - mean of its class)(z - mean of its class)^T, plus 1e-4 on the diagonal.
    """
    of = torch.from_numpy(np.unique(target.numpy(), return_inverse=True)[1])
    means = torch.stack([embedding[of == number].mean(0) for number in range(int(of.max()) + 1)])
    apart = embedding - means[of]
    covariance = apart.T @ apart / len(apart) + _RIDGE * torch.eye(embedding.shape[1])
    return means, torch.linalg.cholesky(covariance)


def virtual_outliers(
    generator: torch.Generator, means: Tensor, factor: Tensor, samples: int = SAMPLES
) -> Tensor:
    """Return the least likely of `samples` draws from each class's Gaussian, float32 [C, D].

    Under N(mean, L L^T) the likelihood of mean + L e falls with the length of e.
    """
    noise = torch.randn(len(means), samples, means.shape[1], generator=generator)
    farthest = torch.linalg.vector_norm(noise, dim=2).argmax(1)
    return means + noise[torch.arange(len(means)), farthest] @ factor.T


def weighted_energy(logits: Tensor, weights: Tensor) -> Tensor:
    """Return -log sum_k max(w_k, 0) exp f_k, float32 [M]; logits: float32 [M, K]; weights: float32 [K]."""
    top = logits.amax(1, keepdim=True)
    total = (F.relu(weights) * torch.exp(logits - top)).sum(1).clamp_min(1e-30)
    return -(top[:, 0] + total.log())


def uncertainty_loss(familiar: Tensor, outliers: Tensor) -> Tensor:
    """Return mean softplus(-phi of outliers) + mean softplus(phi of items), a scalar; float32 [.] each."""
    return F.softplus(-outliers).mean() + F.softplus(familiar).mean()
