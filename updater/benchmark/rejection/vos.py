"""VOS as OpenCIL has it: virtual outliers at the rim of each new class's Gaussian, held at high energy.

Du et al. 2022, "VOS: learning what you don't know by virtual outlier synthesis", for the outliers; Miao et
al. 2024, appendix B, for the loss, which is energy_margins.py's. Each class is a Gaussian in the embedding,
with one covariance for all, (z - mean of its class)(z - mean of its class)^T on average, plus 1e-4
on the diagonal; its outlier is the least likely of 10,000 samples a step. The code makes outliers of the new
classes only, and none before a queue of each class holds 1,000 items: here all training items of the new
classes, however few, give means and covariance.

"published" has OpenCIL's margins; ours takes them from the items. The paper itself trains a logistic layer on
the energy, which OpenCIL's code does not.
"""

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammainccinv
from torch import Tensor

from updater.benchmark.rejection import energy_margins
from updater.benchmark.rejection.energy_margins import PUBLISHED, Margins, margins_of
from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.fine_tuned_head import PLAN, FineTuning, new_and_exemplars

SAMPLES = 10_000
_RIDGE = 1e-4


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train ours; old: bool [n], the exemplars of earlier steps."""
    return _fit(known, old, seed, plan, margins_of(known))


def fit_published(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train with the published margins; old: bool [n], the exemplars of earlier steps."""
    return _fit(known, old, seed, plan, PUBLISHED)


def _fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning, margins: Margins) -> Score:
    new, _ = new_and_exemplars(old)
    means, factor = gaussians(torch.tensor(known.evidence.embedding)[new], torch.tensor(known.targets)[new])
    return energy_margins.fit(
        known, old, seed, plan, margins, lambda generator: virtual_outliers(generator, means, factor)
    )


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
