"""Weights of experts' logits in a release, fitted to held-back items that no expert was fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from detector.model.graph import expert_lean, expert_scores
from detector.release.experts import CarriedExpert, ExpertContract
from updater.data.training_data import LabelledCrops
from updater.measures import auroc, auroc_interval, balanced_weights, weighted_quantile
from updater.training import schemes
from updater.training.step import Options, is_real

BASE_WEIGHT, PROVEN_WEIGHT = 3.0, 9.0
"""of an expert's term beside 9 of the other scores: what it always has, and what skill on known forgeries
adds; chosen on cddb-mini with small experts and with a simulated one of AUC .94"""
LEAST_GROUPS = 5
"""of reals, by which a source says something of the spread"""
_LEAST_SCALE = 1e-3
SHARES = (0.0, *(float(share) for share in np.geomspace(0.005, 2, 60)))
"""Of the vote in the sum of logits, beside 1 of the network's.

A vote fitted to few items is far surer than it is right, so that the best share may be some hundredths: the
steps grow with the share.
"""


@dataclass(frozen=True)
class ExpertsSay:
    """The output of a release's experts for n items."""

    experts: tuple[CarriedExpert, ...]
    logits: Tensor
    """float32 [n, E]"""
    fake: Tensor
    """which of the network's K logits are of forgeries, bool [K]"""
    weights: dict[str, float]
    """of each expert's term in the gate, by its score's name"""

    def of(self, items: LabelledCrops) -> Self:
        """Return the same experts' output for other items, which have their logits."""
        assert items.expert_logits is not None
        return replace(self, logits=torch.from_numpy(items.expert_logits))

    @property
    def lean(self) -> Tensor:
        """The sum for the logit of each forgery, float32 [n]."""
        return expert_lean(self.experts, self.logits.unbind(1))

    @property
    def vote(self) -> Tensor:
        """The sum for the network's logits, float32 [n, K]."""
        return self.lean[:, None] * self.fake

    def scores(self, network_logits: Tensor) -> dict[str, NDArray[np.float32]]:
        """Return each expert's score for the gate, [n], beside the network's own logits, float32 [n, K]."""
        real = 1 - schemes.fake_probability(network_logits, self.fake)
        scores = expert_scores(self.experts, self.logits.unbind(1), real)
        return {name: np.asarray(values.numpy(), np.float32) for name, values in scores.items()}


def calibrated_experts(
    experts: Sequence[ExpertContract],
    items: LabelledCrops,
    logits: Tensor,
    classes: Sequence[str],
    options: Options = Options(),  # noqa: B008 - frozen
    odds: NDArray[np.float64] | None = None,
) -> ExpertsSay:
    """Fit experts' weights to held-back items with their logits; return their output for these.

    logits: float32 [n, K], of the network for these items. classes: of the network, which with `options` name
    its logits. The share of each vote beside the network is fitted, one expert after the other. odds: the log
    odds of fake of these items where their source was left out, [n], by which it is fitted then: beside a
    network that knows an item's source an expert looks worth nothing. No number: the item's was not; None:
    none was. Raises ValueError where no item is real.
    """
    assert items.expert_logits is not None
    names = schemes.columns(classes, options)
    fake = schemes.fake_columns(names)
    families = [names[at] for at in schemes.targets(items.families, classes, options)]
    weights = balanced_weights(np.array(families), np.array(items.groups))
    logits, votes, carried, terms = logits.cpu(), fake, [], {}
    if odds is not None and (left := np.isfinite(odds)).any():
        names, votes = ("real", "fake"), torch.tensor([False, True])
        families = [names[int(not is_real(family))] for family in items.families]
        sides = [f"{source}/{side}" for source, side in zip(items.sources, families, strict=True)]
        weights = balanced_weights(np.array(sides), np.array(items.groups)) * left
        logits = torch.from_numpy(np.stack([np.zeros(len(odds)), np.where(left, odds, 0)], 1)).float()
    for contract, own in zip(experts, items.expert_logits.T, strict=True):
        median, scale, sources = scale_of_reals(own, items)
        slope, offset = log_odds(own, items)
        vote = torch.from_numpy((slope * own + offset).astype(np.float32))[:, None] * votes
        share = share_of_vote(logits, vote, families, names, weights) if slope else 0.0
        logits = logits + share * vote
        terms[contract.score] = term_weight(own, items) / len(experts)
        carried.append(
            CarriedExpert(
                **contract.model_dump(),
                median=median,
                scale=scale,
                reals=int(_real(items).sum()),
                sources=sources,
                slope=share * slope,
                offset=share * offset,
            )
        )
    return ExpertsSay(tuple(carried), torch.from_numpy(items.expert_logits), fake, terms)


def share_of_vote(
    logits: Tensor,
    vote: Tensor,
    families: Sequence[str],
    classes: Sequence[str],
    weights: NDArray[np.float64],
) -> float:
    """Return the share of SHARES at which logits + share · vote, [n, K] each, have the least cross-entropy.

    weights: float64 [n], what each item counts. The items must be ones that neither was trained on: on its
    own training items each is surer than it is right.
    """
    order = {name: number for number, name in enumerate(classes)}
    targets = torch.tensor([order[name] for name in families])
    counts = torch.from_numpy(weights)

    def loss(share: float) -> float:
        losses = torch.nn.functional.cross_entropy(logits + share * vote, targets, reduction="none")
        return float((counts * losses).sum() / counts.sum())

    return min(SHARES, key=loss)


def scale_of_reals(logits: NDArray[np.float32], items: LabelledCrops) -> tuple[float, float, int]:
    """Return the median and the upper spread of reals' logits, and how many sources they are of.

    Each source weighs the same, and a group within it. The spread is over each source's own median, so that
    one camera's offset widens nothing. Raises ValueError where no item is real.
    """
    real = _real(items)
    if not real.any():
        raise ValueError("no held-back item is real: an expert is calibrated on reals")
    values, groups, sources = logits[real], np.array(items.groups)[real], np.array(items.sources)[real]
    names, of = np.unique(sources, return_inverse=True)
    enough = np.array([len(np.unique(groups[of == place])) >= LEAST_GROUPS for place in range(len(names))])
    weights = balanced_weights(of, groups)
    medians = np.array([weighted_quantile(values[of == k], weights[of == k], 0.5) for k in range(len(names))])
    # Of few reals a source's own median leaves next to no spread.
    used = enough[of] if enough.any() else np.ones(len(values), bool)
    over = values - (medians[of] if enough.any() else medians.mean())
    scale = max(weighted_quantile(over[used], weights[used], 0.84), _LEAST_SCALE)
    return float(medians.mean()), scale, len(names)


def term_weight(logits: NDArray[np.float32], items: LabelledCrops) -> float:
    """Return the weight of an expert's term: more, the better it tells known forgeries from reals.

    By 2 A - 1, A the lower end of the AUC's 95 % interval, groups being its units. Where that is chance, or
    where nothing forged is held back, it keeps a part: it may know forgeries that nobody has named.
    """
    real, groups = _real(items), np.array(items.groups)
    counts = [len(np.unique(groups[kind])) for kind in (~real, real)]
    if 0 in counts:
        return BASE_WEIGHT
    low, _ = auroc_interval(auroc(logits[~real], logits[real]), *counts)
    return BASE_WEIGHT + PROVEN_WEIGHT * max(0.0, 2 * low - 1)


def log_odds(logits: NDArray[np.float32], items: LabelledCrops) -> tuple[float, float]:
    """Return slope and offset of the log odds of a forgery by a logit; 0 and 0 where it tells nothing.

    Platt 1999, "Probabilistic outputs for support vector machines": logistic regression on the one logit,
    here with each source weighing the same, and reals as much as forgeries.
    """
    forged = ~_real(items)
    if forged.all() or not forged.any():
        return 0.0, 0.0
    kinds = [f"{source}\0{kind}" for source, kind in zip(items.sources, forged, strict=True)]
    weights = balanced_weights(np.array(kinds), np.array(items.groups))
    for kind in (True, False):
        weights[forged == kind] /= weights[forged == kind].sum()
    fitted = LogisticRegression(C=1e3).fit(logits[:, None], forged, sample_weight=weights * len(logits) / 2)
    slope = float(fitted.coef_[0, 0])
    return (slope, float(fitted.intercept_[0])) if slope > 0 else (0.0, 0.0)


def _real(items: LabelledCrops) -> NDArray[np.bool_]:
    return np.array([is_real(family) for family in items.families], bool)
