"""RegMixup as OpenCIL has it: a head on mixtures of items beside the items themselves (Pinto et al. 2022).

L = 1/2 CE(h, y) + 1/2 [s CE(m, y) + (1 - s) CE(m, y')] with m = s h + (1 - s) h', s ~ Beta(10, 10), one s a
batch and h' a permutation of it; the code takes one mean over items and mixtures together, hence the halves.
There crops are mixed and passed through the frozen backbone; here the frozen embeddings h are. The whole
network is trained so by training/regularisers/regmixup.py.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.heads import class_loss
from updater.benchmark.rejection.heads.fine_tuning import PLAN, FineTuning
from updater.draws import RandomStream
from updater.training.regularisers import regmixup
from updater.training.regularisers.regmixup import Mixing


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head; old: bool [n], the exemplars of earlier steps."""
    embedding, target = torch.tensor(known.evidence.embedding), torch.tensor(known.targets)
    rng = RandomStream.REGMIXUP.generator(seed)

    def loss(head: nn.Linear, items: Tensor, generator: torch.Generator) -> Tensor:
        return mixing_loss(head, embedding[items], target[items], regmixup.draw(rng, len(items)))

    return class_loss.fit(known, old, seed, plan, loss)


def mixing_loss(head: nn.Linear, rows: Tensor, target: Tensor, mixing: Mixing) -> Tensor:
    """Return the loss of a batch, a scalar; rows: float32 [M, D]; target: int64 [M]."""
    partner = torch.from_numpy(mixing.partner)
    said = head(mixing.share * rows + (1 - mixing.share) * rows[partner])
    of_mixtures = mixing.share * F.cross_entropy(said, target)
    of_mixtures = of_mixtures + (1 - mixing.share) * F.cross_entropy(said, target[partner])
    return 0.5 * (F.cross_entropy(head(rows), target) + of_mixtures)
