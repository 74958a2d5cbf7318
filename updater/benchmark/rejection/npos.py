"""NPOS as OpenCIL has it: outliers around the sparse rim of each new class, held at high energy.

Tao et al. 2023, "Non-parametric outlier synthesis", for the outliers; Miao et al. 2024, appendix B, for the
loss, which is energy_margins.py's. The rim of a class are the items whose direction h / |h| has the largest
distance to its k-th nearest neighbour. Candidates h + 0.1 e, e ~ N(0, I), are drawn around two of
them, and 30 % are kept, by the distance of their direction to its k-th nearest item.

OpenCIL's constants, of a queue of 1,000 items of each new class: k = 400, a rim of 200, 2 rim items a
step, 1,000 candidates each, the same e around each, 300 kept; before the queues are full, no outliers. Here
all training items of the new classes are used, however few: k and the rim are 40 % and 20 % of them.

"published" has OpenCIL's margins, and its code's way to keep candidates: those of both rim items are read as
one table of the wrong shape, so that nearly any 30 % are kept. Ours takes the margins from the items, and
keeps the farthest candidates of each rim item, as the paper says. The paper itself trains a network of its
own with a logistic loss, which OpenCIL's code does not.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from updater.benchmark.rejection import energy_margins
from updater.benchmark.rejection.energy_margins import PUBLISHED, Margins, margins_of
from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.fine_tuned_head import PLAN, FineTuning, new_and_exemplars

NEIGHBOUR_SHARE = 0.4
RIM_SHARE = 0.2
RIM_ITEMS = 2
CANDIDATES = 1000
KEPT = 300
SIGMA = 0.1


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train ours; old: bool [n], the exemplars of earlier steps."""
    return _fit(known, old, seed, plan, margins_of(known), as_published=False)


def fit_published(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the published one; old: bool [n], the exemplars of earlier steps."""
    return _fit(known, old, seed, plan, PUBLISHED, as_published=True)


def _fit(
    known: Known,
    old: npt.NDArray[np.bool_],
    seed: int,
    plan: FineTuning,
    margins: Margins,
    *,
    as_published: bool,
) -> Score:
    new, _ = new_and_exemplars(old)
    embedding, target = torch.tensor(known.evidence.embedding)[new], torch.tensor(known.targets)[new]
    classes = [embedding[target == int(number)] for number in np.unique(target.numpy())]
    rims = [rim(one) for one in classes]

    def outliers(generator: torch.Generator) -> Tensor:
        noise = torch.randn(CANDIDATES, embedding.shape[1], generator=generator)
        found = []
        for items, edge in zip(classes, rims, strict=True):
            around = edge[torch.randperm(len(edge), generator=generator)[:RIM_ITEMS]]
            candidates = items[around][:, None] + SIGMA * noise
            far = reach(candidates.flatten(0, 1), items).reshape(candidates.shape[:2])
            kept = kept_as_published(far) if as_published else far.topk(KEPT, 1).indices
            found.append(candidates.gather(1, kept[:, :, None].expand(-1, -1, candidates.shape[2])))
        return torch.cat([one.flatten(0, 1) for one in found])

    return energy_margins.fit(known, old, seed, plan, margins, outliers)


def reach(rows: Tensor, items: Tensor) -> Tensor:
    """Return how far each row's direction is from its k-th nearest item's, float32 [m], in 0..2.

    rows: float32 [m, D]; items: float32 [n, D], all of one class; k is 40 % of n, 1 at least. An item is its
    own nearest.
    """
    apart = torch.cdist(F.normalize(rows, dim=1), F.normalize(items, dim=1))
    return apart.kthvalue(max(1, round(NEIGHBOUR_SHARE * len(items))), dim=1).values


def rim(items: Tensor) -> Tensor:
    """Return the numbers of a class's sparsest items, int64: a fifth of float32 [n, D], one at least."""
    return reach(items, items).topk(max(1, round(RIM_SHARE * len(items)))).indices


def kept_as_published(far: Tensor, kept: int = KEPT) -> Tensor:
    """Return which candidates the published code keeps of each rim item, int64 [R, kept].

    far: float32 [R, candidates]. The code reads these rows, one behind the other, as a table [candidates, R],
    takes the rows of the largest in each column, and counts them as candidates of the column's rim item.
    """
    return far.reshape(far.shape[1], far.shape[0]).topk(kept, 0).indices.T
