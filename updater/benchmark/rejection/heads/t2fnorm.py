"""T2FNorm as OpenCIL has it: a head that reads features of one length in training only (Regmi et al. 2023).

L = CE(f(h / (tau |h|)), y) with tau = 0.1, on frozen embeddings h; the score reads h as it is. The whole
network is trained so by training/regularisers/t2fnorm.py.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.heads import class_loss
from updater.benchmark.rejection.heads.fine_tuning import PLAN, FineTuning
from updater.training.regularisers.t2fnorm import normalised


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head; old: bool [n], the exemplars of earlier steps."""
    rows, target = normalised(torch.tensor(known.evidence.embedding)), torch.tensor(known.targets)

    def loss(head: nn.Linear, items: Tensor, generator: torch.Generator) -> Tensor:
        return F.cross_entropy(head(rows[items]), target[items])

    return class_loss.fit(known, old, seed, plan, loss)
