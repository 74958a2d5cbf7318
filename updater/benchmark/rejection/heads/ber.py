"""BER: a head of its own, of low energy for old and new classes and high energy between (Miao et al. 2024).

"OpenCIL: benchmarking out-of-distribution detection in class-incremental learning", eq. 1-5. The loss is
energy_margins.py's; its outliers are u = s x + (1 - s) x', s ~ Beta(1, 1): mixtures of new items.

"published" has OpenCIL's margins and pairs x, x' whatever their classes. Ours takes the margins from the
items and mixes different classes only: of two classes, half of all pairs are no outliers. Where fewer than
two classes are new, ours mixes any items of different classes.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.heads import energy_margins
from updater.benchmark.rejection.heads.energy_margins import PUBLISHED, Outliers, margins_of
from updater.benchmark.rejection.heads.fine_tuning import PLAN, FineTuning, new_and_exemplars, pick


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train ours; old: bool [n], the exemplars of earlier steps."""
    mixed = mixtures(known, old, plan.batch, different=True)
    return energy_margins.fit(known, old, seed, plan, margins_of(known), mixed)


def fit_published(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the published one; old: bool [n], the exemplars of earlier steps."""
    mixed = mixtures(known, old, plan.batch, different=False)
    return energy_margins.fit(known, old, seed, plan, PUBLISHED, mixed)


def mixtures(known: Known, old: npt.NDArray[np.bool_], count: int, *, different: bool) -> Outliers:
    """Return what mixes `count` pairs of items; of different classes alone, there are fewer."""
    embedding, target = torch.tensor(known.evidence.embedding), torch.tensor(known.targets)
    mixable, _ = new_and_exemplars(old)
    if different and len(np.unique(known.targets[mixable.numpy()])) < 2:
        mixable = torch.arange(len(target))

    def draw(generator: torch.Generator) -> Tensor:
        first, second = pick(generator, mixable, count), pick(generator, mixable, count)
        if different:
            apart = target[first] != target[second]
            first, second = first[apart], second[apart]
        share = torch.rand((), generator=generator)
        return share * embedding[first] + (1 - share) * embedding[second]

    return draw
