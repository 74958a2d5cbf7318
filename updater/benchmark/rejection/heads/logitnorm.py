"""LogitNorm as OpenCIL has it: a head whose cross-entropy cannot fall by longer logits (Wei et al. 2022).

L = CE(f / (tau |f|), y) with tau = 0.04, on frozen embeddings. The whole network is trained so by
training/regularisers/logitnorm.py.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.heads import class_loss
from updater.benchmark.rejection.heads.fine_tuning import PLAN, FineTuning
from updater.training.regularisers.logitnorm import normalised


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head; old: bool [n], the exemplars of earlier steps."""
    embedding, target = torch.tensor(known.evidence.embedding), torch.tensor(known.targets)

    def loss(head: nn.Linear, items: Tensor, generator: torch.Generator) -> Tensor:
        return F.cross_entropy(normalised(head(embedding[items])), target[items])

    return class_loss.fit(known, old, seed, plan, loss)
