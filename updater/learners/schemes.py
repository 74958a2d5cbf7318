"""The schemes of CDDB (Li et al. 2023, section 4): what a logit stands for, and the loss on it.

With "bc" the head has two logits, real and fake, whatever the number of classes. With "mc" and "mt"
each class has its own.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from updater.learners.step import Options, is_real


def columns(classes: Sequence[str], options: Options) -> tuple[str, ...]:
    """Return the names of the head's logits."""
    return ("real", "fake") if options.scheme == "bc" else tuple(classes)


def targets(families: Sequence[str], classes: Sequence[str], options: Options) -> list[int]:
    """Return the logit of each item's class."""
    if options.scheme == "bc":
        return [0 if is_real(family) else 1 for family in families]
    place = {name: number for number, name in enumerate(classes)}
    return [place[family] for family in families]


def fake_columns(names: Sequence[str]) -> Tensor:
    """Return which logits stand for fakes, bool [K]."""
    return torch.tensor([not is_real(name) for name in names])


def class_loss(
    logits: Tensor, target: Tensor, fake: Tensor, options: Options, smoothing: float = 0.0
) -> Tensor:
    """Return the classification loss, a scalar, over logits float32 [M, K] and targets int64 [M].

    fake: bool [K]. "bc" and "mc" are the cross-entropy (eq. 2 and 6: two logits under a softmax are one
    under a sigmoid); "mt" is (1 - lambda) times it plus lambda times the binary loss (eq. 7). A logit beyond
    K belongs to the pseudo-forgeries: it takes part in the cross-entropy, and is in neither sum.
    """
    entropy = F.cross_entropy(logits, target, label_smoothing=smoothing)
    if options.scheme != "mt":
        return entropy
    known = target < len(fake)
    if not known.any():
        return (1 - options.mt_weight) * entropy
    scores = binary_scores(logits[known, : len(fake)], fake, options)
    is_fake = fake.to(target.device)[target[known]].long()
    binary = -scores.gather(1, is_fake[:, None]).mean()
    return (1 - options.mt_weight) * entropy + options.mt_weight * binary


def binary_scores(logits: Tensor, fake: Tensor, options: Options) -> Tensor:
    """Return (d_R, d_F) of each row, float32 [M, 2], the aggregations of eq. 9 with g the softmax.

    sumlog (9a): sum of log g. sumlogit (9b): log of the sum of g. sumfeat (9c): the log of the softmax
    over the two sums of logits. max (9d): the highest log g. sumlogit-code: as the published code has it, the
    sums of the sigmoids of the real and of the fake logits, divided by both together.
    """
    fake = fake.to(logits.device)
    sides = (logits[:, ~fake], logits[:, fake])
    if options.aggregate == "sumfeat":
        return F.log_softmax(torch.stack([side.sum(1) for side in sides], 1), 1)
    if options.aggregate == "sumlogit-code":
        sums = torch.stack([torch.sigmoid(side).sum(1) for side in sides], 1)
        return torch.log(sums / sums.sum(1, keepdim=True))
    logs = F.log_softmax(logits, 1)
    sides = (logs[:, ~fake], logs[:, fake])
    if options.aggregate == "sumlog":
        return torch.stack([side.sum(1) for side in sides], 1)
    if options.aggregate == "max":
        return torch.stack([side.amax(1) for side in sides], 1)
    return torch.stack([side.logsumexp(1) for side in sides], 1)


def fake_probability(logits: Tensor, fake: Tensor) -> Tensor:
    """Return the softmax mass on the fake logits, float32 [M], for a binary ROC; fake: bool [K]."""
    return torch.softmax(logits, 1)[:, fake.to(logits.device)].sum(1)
