"""OpenCIL's extra head: energies held below one margin for known items, above another for outliers.

Miao et al. 2024, "OpenCIL: benchmarking out-of-distribution detection in class-incremental learning",
eq. 2-5 and appendix B, as its code has them (the paper's own formulas are lost in our copy). BER, VOS and
NPOS share this loss there, and differ in what u is:

    L = CE(f(x), y) + CE(f(o), y_o) + 0.1 [(E(x) - m_in)+^2 + (E(o) - m_in)+^2 + (m_out - E(u))+^2]

x: items of the new classes. o = 0.002 x + 0.998 r: exemplars r of old classes, with their label. u:
outliers. E = -logsumexp f. Only the head f trains; it begins as the classifier; the score is E. The published
margins are m_in = -27 and m_out = -5. `margins_of` takes them from the items instead: a network with few
classes has no energies near -27.

The code mixes crops and passes them through the frozen backbone; here the frozen embeddings are mixed. It
clips no gradients; here they are clipped to a length of 5 (heads.py).

BER's own outliers (eq. 1) are u = s x + (1 - s) x', s ~ Beta(1, 1): mixtures of new items. As published, x
and x' are of any classes. Ours takes the margins from the items and mixes different classes only: of two
classes, half of all pairs are no outliers. Where fewer than two classes are new, ours mixes any items of
different classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from detector.model.scores import energy
from updater.benchmark.rejection.evidence import FitSet, Score
from updater.benchmark.rejection.heads import (
    PLAN,
    FineTuning,
    energy_of_head,
    extra_head,
    fine_tune,
    new_and_exemplars,
    pick,
)

OLD_MIX = 0.002
WEIGHT = 0.1
ABOVE = 1.0

Outliers = Callable[[torch.Generator], Tensor]
"""Draws outliers for one step, float32 [U, D]: rows of the embedding."""


@dataclass(frozen=True)
class Margins:
    """Energies: of familiar items below `inside`, of outliers above `outside`."""

    inside: float
    outside: float


PUBLISHED = Margins(-27.0, -5.0)


def margins_of(known: FitSet) -> Margins:
    """Return the median energy of the items under the head as it begins, and their 95 % quantile + 1."""
    familiar = energy(torch.tensor(known.evidence.logits))
    return Margins(float(familiar.median()), float(familiar.quantile(0.95)) + ABOVE)


def fit(
    known: FitSet, old: NDArray[np.bool_], seed: int, plan: FineTuning, outliers: Outliers, *, published: bool
) -> Score:
    """Train the head against these outliers, with the published margins or the items' own."""
    margins = PUBLISHED if published else margins_of(known)
    new, exemplars = new_and_exemplars(old)
    head, embedding, target = extra_head(known), *known.rows()

    def loss(generator: torch.Generator) -> Tensor:
        items = pick(generator, new, plan.batch)
        logits = head(embedding[items])
        value = F.cross_entropy(logits, target[items])
        beyond = head(outliers(generator))
        kept = logits[:0]
        if len(exemplars):
            remembered = pick(generator, exemplars, plan.batch)
            kept = head(OLD_MIX * embedding[items] + (1 - OLD_MIX) * embedding[remembered])
            value = value + F.cross_entropy(kept, target[remembered])
        return value + WEIGHT * energy_loss(logits, kept, beyond, margins)

    fine_tune(head, loss, plan, seed)
    return energy_of_head(head)


def energy_loss(new: Tensor, old: Tensor, beyond: Tensor, margins: Margins) -> Tensor:
    """Return (E_new - m_in)+^2 + (E_old - m_in)+^2 + (m_out - E_beyond)+^2, each a mean, a scalar.

    All are logits, float32 [., K]; a part without rows is 0. Eq. 2 and 4.
    """
    inside = (energy(logits) - margins.inside for logits in (new, old))
    hinges = [F.relu(past).square() for past in (*inside, margins.outside - energy(beyond))]
    return torch.stack([hinge.sum() / max(1, len(hinge)) for hinge in hinges]).sum()


def fit_ber(
    known: FitSet, old: NDArray[np.bool_], seed: int, plan: FineTuning = PLAN, *, published: bool = False
) -> Score:
    """Train BER's head, ours or the published one."""
    mixed = mixtures(known, old, plan.batch, different=not published)
    return fit(known, old, seed, plan, mixed, published=published)


def mixtures(known: FitSet, old: NDArray[np.bool_], count: int, *, different: bool) -> Outliers:
    """Return a sampler of mixtures of `count` pairs of items; of different classes alone, there are fewer."""
    embedding, target = known.rows()
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
