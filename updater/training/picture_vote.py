"""The vote of the picture branch: shrinkage LDA on a frozen backbone's features, and how much it counts.

A linear head on frozen features of a large pretrained model is what generalises best to generators that were
not trained on (Ojha et al. 2023, "Towards universal fake image detectors that generalize across generative
models"). Discriminants of one shrunk covariance (Ledoit and Wolf 2004) need no rate and no epochs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from updater.data.training_data import LabelledCrops
from updater.measures import balanced_weights
from updater.training import schemes
from updater.training.step import Options

SHARES = (0.0, *(float(share) for share in np.geomspace(0.005, 2, 60)))
"""Of the vote in the sum of logits, beside 1 of the network's.

Discriminants of many features and few items are far surer than they are right, so that the best share may be
some hundredths: the steps grow with the share.
"""


@dataclass(frozen=True)
class Vote:
    """A linear head on a frozen model's features, times its share: what is added to a network's logits."""

    weight: Tensor
    """float32 [K, B]"""
    bias: Tensor
    """float32 [K]"""

    def on(self, items: LabelledCrops) -> Tensor:
        """Return its logits for n items with picture features, float32 [n, K], on the CPU."""
        assert items.picture_features is not None
        return torch.from_numpy(items.picture_features) @ self.weight.T + self.bias


def vote_beside(
    logits: Tensor,
    train: LabelledCrops,
    held_back: LabelledCrops,
    classes: Sequence[str],
    options: Options = Options(),  # noqa: B008 - frozen
) -> Vote:
    """Fit the vote to the training items, and its share beside a network to items held back.

    logits: float32 [n, K], the network's for these. That one number is fitted where the gate is: neither the
    network nor the vote was trained on those items. classes: of the network, which with `options` name its
    logits. Raises ValueError where no item is held back.
    """
    if not len(held_back):
        raise ValueError("no item is held back, and the share of a vote is fitted to such: hold some back")
    names = schemes.columns(classes, options)
    of = [[names[at] for at in schemes.targets(one.families, classes, options)] for one in (train, held_back)]
    assert train.picture_features is not None
    weight, bias = fit_vote(train.picture_features, of[0], names)
    weights = balanced_weights(np.array(of[1]), np.array(held_back.groups))
    share = share_of_vote(logits.cpu(), Vote(weight, bias).on(held_back), of[1], names, weights)
    return Vote(share * weight, share * bias)


def fit_vote(
    features: NDArray[np.float32], families: Sequence[str], classes: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Fit n items' features, [n, B]; return weight [K, B] and bias [K] of logits that are 0 on average.

    Every class counts alike, whatever its items. Of a class without any nothing is known: its logit is 0.
    """
    found = [name for name in classes if name in set(families)]
    weight, bias = np.zeros((len(classes), features.shape[1])), np.zeros(len(classes))
    if len(found) > 1:
        places = [list(classes).index(name) for name in found]
        weight[places], bias[places] = _discriminants(features, families, found)
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


def _discriminants(
    features: NDArray[np.float32], families: Sequence[str], classes: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    order = {name: number for number, name in enumerate(classes)}
    targets = np.array([order[name] for name in families])
    priors = np.full(len(classes), 1 / len(classes))
    fitted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=priors)
    fitted.fit(features.astype(np.float64), targets)
    weight, bias = fitted.coef_, fitted.intercept_
    if len(classes) == 2:  # scikit-learn gives the second's logit alone, over the first's
        weight, bias = (np.concatenate([-one, one]) / 2 for one in (weight, bias))
    return weight - weight.mean(0), bias - bias.mean()


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
        each = torch.nn.functional.cross_entropy(logits + share * vote, targets, reduction="none")
        return float((counts * each).sum() / counts.sum())

    return min(SHARES, key=loss)
