"""AugMix as OpenCIL has it: a head that answers alike for changed versions of an item.

Hendrycks et al. 2020. L = CE(x, y) + 12 JS(p(x); p(x'); p(x'')), with x', x'' two versions of an item's
crops, changed as OpenCIL's configuration says (training/regularisers/augmix.py) and passed through the frozen
network. They are drawn once, where OpenCIL draws them for each of its ten epochs. Of exemplars its code takes
x' for x and x'' for both versions; here new items and exemplars have the same loss.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from updater.benchmark.rejection.evidence import EvidenceError, Known, Score
from updater.benchmark.rejection.heads import class_loss
from updater.benchmark.rejection.heads.fine_tuning import PLAN, FineTuning
from updater.training.regularisers.augmix import VERSIONS, WEIGHT, jensen_shannon


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head; old: bool [n], the exemplars of earlier steps. Raises EvidenceError."""
    if len(known.versions) != VERSIONS:
        raise EvidenceError(f"augmix reads {VERSIONS} versions of each item, not {len(known.versions)}")
    embedding, target = torch.tensor(known.evidence.embedding), torch.tensor(known.targets)
    versions = [torch.tensor(one.embedding) for one in known.versions]

    def loss(head: nn.Linear, items: Tensor, generator: torch.Generator) -> Tensor:
        said = head(embedding[items])
        alike = jensen_shannon((said, *(head(one[items]) for one in versions)))
        return F.cross_entropy(said, target[items]) + WEIGHT * alike

    return class_loss.fit(known, old, seed, plan, loss)
