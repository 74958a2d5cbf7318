"""NPOS with the paper's own loss: a small network tells items from outliers beyond the rim of each class.

Tao et al. 2023, "Non-parametric outlier synthesis". On the unit sphere: the items with the largest distance
to their k-th nearest neighbour are the rim; candidates are drawn around them, N(h, sigma^2 I), and those kept
whose own distance to the k-th nearest item is largest (rejection sampling). A small network phi learns to
tell items from outliers (logistic loss, one mean for each side); the score is -phi.

The paper trains the embedding as well, by a contrastive loss over the classes; here it is frozen, and phi
alone is trained, on old and new classes alike. Tiny, stated: k = 10 or a class's items less one, the rim a
fifth of each class, 2 rim items a class and step with 100 candidates each, the farthest 30 % kept, phi of one
hidden layer of 64. sigma = 0.1 is the deviation, as the published code has it, and not the variance: in 64
dimensions such outliers lie 0.71 from their class, which is farther than most unseen forgeries do.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from updater.benchmark.rejection.evidence import Evidence, Known, Score, checked
from updater.benchmark.rejection.heads.fine_tuning import PLAN, FineTuning, fine_tune, pick

NEIGHBOURS = 10
SIGMA = 0.1
RIM_SHARE = 0.2
_RIM_ITEMS = 2
_CANDIDATES = 100
_KEPT_SHARE = 0.3
_HIDDEN = 64


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train phi; the items of old classes, bool [n], are not told apart."""
    embedding = F.normalize(torch.tensor(known.evidence.embedding), dim=1)
    target = torch.tensor(known.targets)
    classes = [embedding[target == int(number)] for number in np.unique(known.targets)]
    rims = [rim(one) for one in classes]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        phi = nn.Sequential(nn.Linear(embedding.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))
    everything = torch.arange(len(target))

    def loss(generator: torch.Generator) -> Tensor:
        items = embedding[pick(generator, everything, plan.batch)]
        beyond = [
            outliers(generator, one, pick(generator, edge, _RIM_ITEMS))
            for one, edge in zip(classes, rims, strict=True)
        ]
        return open_loss(phi(items)[:, 0], phi(torch.cat(beyond))[:, 0])

    fine_tune(list(phi.parameters()), loss, plan, seed)

    def score(evidence: Evidence) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            rows = F.normalize(torch.tensor(evidence.embedding), dim=1)
            return np.asarray(-phi(rows)[:, 0].numpy())

    return checked(known, score)


def rim(items: Tensor) -> Tensor:
    """Return the numbers of a class's sparsest items, int64: a fifth of float32 [n, D], one at least."""
    # The nearest of its own class to an item is the item itself.
    reach = torch.cdist(items, items).topk(min(NEIGHBOURS + 1, len(items)), 1, largest=False).values[:, -1]
    return reach.topk(max(1, round(RIM_SHARE * len(items)))).indices


def outliers(generator: torch.Generator, items: Tensor, around: Tensor) -> Tensor:
    """Return the candidates around each rim item that lie farthest from the class, float32 [R * 30, D].

    items: float32 [n, D], of one class and unit length; around: int64 [R]. The outliers have unit length.
    """
    width = items.shape[1]
    noise = torch.randn(len(around), _CANDIDATES, width, generator=generator)
    candidates = F.normalize(items[around][:, None] + SIGMA * noise, dim=2)
    near = torch.cdist(candidates.flatten(0, 1), items).topk(min(NEIGHBOURS, len(items)), 1, largest=False)
    reach = near.values[:, -1].reshape(len(around), _CANDIDATES)
    kept = reach.topk(round(_KEPT_SHARE * _CANDIDATES), 1).indices
    return candidates.gather(1, kept[:, :, None].expand(-1, -1, width)).flatten(0, 1)


def open_loss(familiar: Tensor, beyond: Tensor) -> Tensor:
    """Return mean softplus(phi of outliers) + mean softplus(-phi of items), a scalar; float32 [.] each."""
    return F.softplus(beyond).mean() + F.softplus(-familiar).mean()
