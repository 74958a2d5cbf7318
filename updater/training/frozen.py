"""What a frozen model makes of whole pictures, and its vote.

The vote is a linear head on these rows, which is what generalises best to generators that were not trained on
(Ojha et al. 2023, "Towards universal fake image detectors that generalize across generative models"). It is
linear discriminants of one shrunk covariance (Ledoit and Wolf 2004), which need no rate and no epochs.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from detector.model.backbone import Shown
from detector.model.network import PictureBranch
from detector.release.manifest import Picture
from updater.data.stored_rows import StoredRows
from updater.data.training_data import LabelledCrops
from updater.measures import balanced_weights
from updater.progress import Steps, uncounted
from updater.training import schemes
from updater.training.crop_rows import by_rows
from updater.training.kept_rows import FrozenModel, kept_rows
from updater.training.step import Options
from updater.training.weights import Weights, put_backbone


def picture_of(name: str, side_px: int, shown: Shown, weights: Weights) -> Picture:
    """Describe timm's model `name` with these weights, as it sees pictures of this size."""
    return Picture(
        backbone=name,
        side_px=side_px,
        mean=shown.mean,
        deviation=shown.deviation,
        weights=weights.described,
    )


def frozen_branch(picture: Picture, weights: Weights, classes: int = 1) -> PictureBranch:
    """Return a branch with these weights, and a head that says nothing yet. Raises WeightsError."""
    branch = PictureBranch(picture, classes)
    put_backbone(branch.backbone, picture.backbone, picture.side_px, weights)
    return branch


def frozen_rows(
    branch: PictureBranch,
    pictures: NDArray[np.uint8] | StoredRows,
    device: torch.device,
    kept: Path | None = None,
    progress: Steps = uncounted,
) -> NDArray[np.float32]:
    """Return the backbone's features of whole pictures, uint8 [n, S, S, 3] → float32 [n, B].

    Rounded, kept and raised as `updater.training.kept_rows.kept_rows` says.
    """

    def rows(some: NDArray[np.uint8], say: Steps) -> NDArray[np.float32]:
        made = by_rows(branch.to(device).features, some, device, say)
        return torch.as_tensor(made[:]).cpu().numpy()

    picture = branch.picture
    model = FrozenModel(digest_of(branch), branch.head.in_features, picture.backbone, picture.weights, rows)
    return kept_rows(model, pictures, kept, progress)


def digest_of(branch: PictureBranch) -> str:
    """Return the SHA-256, hexadecimal, of all that a row follows from but the picture."""
    total = hashlib.sha256(branch.picture.model_dump_json(exclude={"weights"}).encode())
    for name, value in sorted(branch.backbone.state_dict().items()):
        total.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        total.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return total.hexdigest()


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


def vote_on(branch: PictureBranch | None, items: LabelledCrops) -> Tensor | None:
    """Return the branch's logits for items with picture features, float32 [n, K]; None without a branch."""
    if branch is None:
        return None
    return Vote(branch.head.weight.detach().cpu(), branch.head.bias.detach().cpu()).on(items)


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
