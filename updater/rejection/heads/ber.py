"""BER: a head of its own, of low energy for old and new classes and high energy between (Miao et al. 2024).

"OpenCIL: benchmarking out-of-distribution detection in class-incremental learning", eq. 1-5 (the formulas as
its code has them, since the paper's own are lost in our copy):

    L = CE(f(x), y) + CE(f(o), y_o) + 0.1 [(E(x) - m_in)+^2 + (E(o) - m_in)+^2 + (m_out - E(u))+^2]

x: items of the new classes. o = 0.002 x + 0.998 r: exemplars r of old classes, with their label. u = s x +
(1 - s) x', s ~ Beta(1, 1): pseudo-outliers, mixed of new items. E = -logsumexp f. Only the head f trains; it
begins as the classifier; the score is E. "published" has m_in = -27, m_out = -5 and pairs x, x' whatever
their classes. Ours takes the margins from the energies of the training items under the head as it begins,
m_in their median and m_out their 95 % quantile + 1, and mixes different classes only: of two classes, half of
all pairs are no outliers. Where fewer than two classes are new, ours mixes any items of different classes.

The code mixes crops and passes them through the frozen backbone; here the frozen embeddings are mixed.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from detector.scores.energy import energy
from updater.rejection.evidence import Evidence, Known, Score, checked
from updater.rejection.heads.fine_tuning import PLAN, FineTuning, extra_head, fine_tune, pick

PUBLISHED_MARGINS = (-27.0, -5.0)
_OLD_MIX = 0.002
_WEIGHT = 0.1
_ABOVE = 1.0


@dataclass(frozen=True)
class Margins:
    """Energies: of familiar items below `inside`, of outliers above `outside`."""

    inside: float
    outside: float


def fit(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train ours; old: bool [n], the exemplars of earlier steps."""
    familiar = energy(torch.tensor(known.evidence.logits))
    margins = Margins(float(familiar.median()), float(familiar.quantile(0.95)) + _ABOVE)
    return _fit(known, old, seed, plan, margins, different=True)


def fit_published(known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the published one; old: bool [n], the exemplars of earlier steps."""
    return _fit(known, old, seed, plan, Margins(*PUBLISHED_MARGINS), different=False)


def energy_loss(new: Tensor, old: Tensor, between: Tensor, margins: Margins) -> Tensor:
    """Return (E_new - m_in)+^2 + (E_old - m_in)+^2 + (m_out - E_between)+^2, each a mean, a scalar.

    All are logits, float32 [., K]; a part without rows is 0. Eq. 2 and 4.
    """
    return (
        _mean(F.relu(energy(new) - margins.inside).square())
        + _mean(F.relu(energy(old) - margins.inside).square())
        + _mean(F.relu(margins.outside - energy(between)).square())
    )


def _fit(
    known: Known, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning, margins: Margins, different: bool
) -> Score:
    embedding, target = torch.tensor(known.evidence.embedding), torch.tensor(known.targets)
    exemplars, new = torch.from_numpy(np.flatnonzero(old)), torch.from_numpy(np.flatnonzero(~old))
    if not len(new):
        exemplars, new = new, exemplars
    mixable = new
    if different and len(np.unique(known.targets[new.numpy()])) < 2:
        mixable = torch.arange(len(target))
    head = extra_head(known)

    def loss(generator: torch.Generator) -> Tensor:
        items = pick(generator, new, plan.batch)
        said = head(embedding[items])
        value = F.cross_entropy(said, target[items])
        first, second = pick(generator, mixable, plan.batch), pick(generator, mixable, plan.batch)
        if different:
            apart = target[first] != target[second]
            first, second = first[apart], second[apart]
        share = torch.rand((), generator=generator)
        between = head(share * embedding[first] + (1 - share) * embedding[second])
        kept = said[:0]
        if len(exemplars):
            remembered = pick(generator, exemplars, plan.batch)
            kept = head(_OLD_MIX * embedding[items] + (1 - _OLD_MIX) * embedding[remembered])
            value = value + F.cross_entropy(kept, target[remembered])
        return value + _WEIGHT * energy_loss(said, kept, between, margins)

    fine_tune(list(head.parameters()), loss, plan, seed)

    def score(evidence: Evidence) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(energy(head(torch.tensor(evidence.embedding))).numpy())

    return checked(known, score)


def _mean(values: Tensor) -> Tensor:
    return values.mean() if len(values) else values.sum()
