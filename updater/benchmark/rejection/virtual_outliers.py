"""NPOS and VOS as OpenCIL has them: outliers made around each new class, held at high energy.

Miao et al. 2024, appendix B, for the loss, which is energy_margins.py's. "published" has OpenCIL's margins;
ours takes them from the items. The papers' own logistic losses are not in OpenCIL's code. That makes outliers
of the new classes only, and none before a queue of each holds 1,000 items; here all training items of the new
classes are used, however few.

NPOS (Tao et al. 2023, "Non-parametric outlier synthesis"): the rim of a class are the items whose direction
h / |h| has the largest distance to its k-th nearest neighbour. Candidates h + 0.1 e, e ~ N(0, I), are drawn
around two of them, and 30 % are kept, by the distance of their direction to its k-th nearest item. OpenCIL's
constants are k = 400, a rim of 200, 2 rim items a step, 1,000 candidates each, the same e around each, and
300 kept; here k and the rim are 40 % and 20 % of the items. "published" also keeps candidates as OpenCIL's
code does: those of both rim items are read as one table of the wrong shape, so that nearly any 30 % are kept.
Ours keeps the farthest candidates of each rim item, as the paper says.

VOS (Du et al. 2022, "VOS: learning what you don't know by virtual outlier synthesis"): each class is a
Gaussian in the embedding, with one covariance for all, (z - mean of its class)(z - mean of its class)^T on
average, plus 1e-4 on the diagonal; its outlier is the least likely of 10,000 samples a step.
"""

from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.special import gammainccinv
from torch import Tensor

from updater.benchmark.rejection import energy_margins
from updater.benchmark.rejection.evidence import FitSet, Score
from updater.benchmark.rejection.heads import PLAN, FineTuning, new_and_exemplars

NEIGHBOUR_SHARE = 0.4
RIM_SHARE = 0.2
RIM_ITEMS = 2
CANDIDATES = 1000
KEPT = 300
SIGMA = 0.1


def fit_npos(
    known: FitSet, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN, *, published: bool = False
) -> Score:
    """Train NPOS's head, ours or the published one."""
    new, _ = new_and_exemplars(old)
    embedding, target = torch.tensor(known.evidence.embedding)[new], torch.tensor(known.targets)[new]
    classes = [embedding[target == int(number)] for number in np.unique(target.numpy())]
    rims = [rim(items) for items in classes]

    def outliers(generator: torch.Generator) -> Tensor:
        noise = torch.randn(CANDIDATES, embedding.shape[1], generator=generator)
        chosen = []
        for items, edge in zip(classes, rims, strict=True):
            around = edge[torch.randperm(len(edge), generator=generator)[:RIM_ITEMS]]
            candidates = items[around][:, None] + SIGMA * noise
            far = reach(candidates.flatten(0, 1), items).reshape(candidates.shape[:2])
            kept = kept_as_published(far) if published else far.topk(KEPT, 1).indices
            chosen.append(candidates.gather(1, kept[:, :, None].expand(-1, -1, candidates.shape[2])))
        return torch.cat([kept.flatten(0, 1) for kept in chosen])

    return energy_margins.fit(known, old, seed, plan, outliers, published=published)


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


SAMPLES = 10_000
_RIDGE = 1e-4


def fit_vos(
    known: FitSet, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN, *, published: bool = False
) -> Score:
    """Train VOS's head, ours or the one with the published margins."""
    new, _ = new_and_exemplars(old)
    means, factor = gaussians(torch.tensor(known.evidence.embedding)[new], torch.tensor(known.targets)[new])
    outliers = partial(virtual_outliers, means=means, factor=factor)
    return energy_margins.fit(known, old, seed, plan, outliers, published=published)


def gaussians(embedding: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes' means, float32 [C, D], and the Cholesky factor [D, D] of their common covariance.

    embedding: float32 [n, D]; target: int64 [n]; C counts the classes that occur.
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

    Under N(mean, L L^T) the likelihood of mean + L e falls with the length of e alone, which does not
    depend on its direction. So only the one that is kept is drawn: a direction, and the largest of `samples`
    lengths, whose squares are chi-squared with D degrees of freedom.
    """
    classes, width = means.shape
    direction = torch.nn.functional.normalize(torch.randn(classes, width, generator=generator), dim=1)
    # The chance that one draw is longer than the longest of them all; 1 - u^(1/n), where 1 - u would round.
    beyond = -torch.expm1(torch.rand(classes, generator=generator, dtype=torch.float64).log() / samples)
    length = np.sqrt(2 * gammainccinv(width / 2, beyond.numpy()))
    return means + torch.from_numpy(length.astype(np.float32))[:, None] * direction @ factor.T
