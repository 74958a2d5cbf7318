"""The vote of the picture branch: shrinkage LDA on a frozen backbone's features, and how much it counts.

A linear head on frozen features of a large pretrained model is what generalises best to generators that were
not trained on (Ojha et al. 2023, "Towards universal fake image detectors that generalize across generative
models"). Discriminants of one shrunk covariance (Ledoit and Wolf 2004) need no rate and no epochs.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from detector.picture import PictureBranch
from updater.training.pools import Crops, by_rows

SHARES = tuple(float(share) for share in np.linspace(0, 2, 41))
"""Of the vote in the sum of logits, beside 1 of the network's."""


def picture_features(
    branch: PictureBranch,
    pictures: Crops,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Return the backbone's features of whole pictures, uint8 [n, S, S, 3] → float32 [n, B], on the CPU."""
    rows = by_rows(branch.to(device).features, pictures, device, progress)
    return torch.as_tensor(rows[:]).cpu()


def fit_vote(
    features: NDArray[np.float32], families: Sequence[str], classes: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Fit n items' features, [n, B]; return weight [K, B] and bias [K] of logits that are 0 on average.

    Every class counts alike, whatever its items. Each class needs an item.
    """
    order = {name: number for number, name in enumerate(classes)}
    targets = np.array([order[name] for name in families])
    priors = np.full(len(classes), 1 / len(classes))
    fitted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=priors)
    fitted.fit(features.astype(np.float64), targets)
    weight, bias = fitted.coef_, fitted.intercept_
    if len(classes) == 2:  # scikit-learn gives the second's logit alone, over the first's
        weight, bias = (np.concatenate([-one, one]) / 2 for one in (weight, bias))
    weight, bias = weight - weight.mean(0), bias - bias.mean()
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


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
