"""OpenCIL's extra head, trained by a loss on the classes alone.

Miao et al. 2024, "OpenCIL: benchmarking out-of-distribution detection in class-incremental learning", section
3.2: of LogitNorm, T2FNorm, AugMix and RegMixup. The loss of a batch of new items is added to that of a batch
of exemplars. Only the head trains; it begins as the classifier, and its score is the energy.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.heads.fine_tuning import (
    FineTuning,
    energy_of_head,
    extra_head,
    fine_tune,
    new_and_exemplars,
    pick,
)

Loss = Callable[[nn.Linear, Tensor, torch.Generator], Tensor]
"""(head, the numbers of a batch's items, int64 [M], generator) → their loss, a scalar."""


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning, loss: Loss) -> Score:
    """Train the head; old: bool [n], the exemplars of earlier steps."""
    parts = [part for part in new_and_exemplars(old) if len(part)]
    head = extra_head(known)

    def of_both(generator: torch.Generator) -> Tensor:
        losses = [loss(head, pick(generator, part, plan.batch), generator) for part in parts]
        return torch.stack(losses).sum()

    fine_tune(list(head.parameters()), of_both, plan, seed)
    return energy_of_head(known, head)
