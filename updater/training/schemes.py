"""The schemes of CDDB (Li et al. 2023, section 4): the meaning of a logit, and the loss on it.

With "bc" the head has two logits, real and fake, whatever the number of classes. With "mc" and "mt"
each class has its own.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from updater.training.step import Aggregate, Options, is_real


def columns(classes: Sequence[str], options: Options) -> tuple[str, ...]:
    return ("real", "fake") if options.scheme == "bc" else tuple(classes)


def targets(families: Sequence[str], classes: Sequence[str], options: Options) -> list[int]:
    if options.scheme == "bc":
        return [0 if is_real(family) else 1 for family in families]
    place = {name: number for number, name in enumerate(classes)}
    return [place[family] for family in families]


def fake_columns(names: Sequence[str]) -> Tensor:
    """Return which logits stand for fakes, bool [K]."""
    return torch.tensor([not is_real(name) for name in names])


Entropy = Callable[[Tensor, Tensor], Tensor]
"""from logits, float32 [M, K], and targets, int64 [M], to a scalar, the mean over items"""


def smooth(smoothing: float) -> Entropy:
    """Return the softmax cross-entropy with this share of each target spread over all logits."""
    return lambda logits, target: F.cross_entropy(logits, target, label_smoothing=smoothing)


def class_loss(
    logits: Tensor, target: Tensor, fake: Tensor, options: Options, entropy: Entropy = F.cross_entropy
) -> Tensor:
    """Return the classification loss, a scalar, over logits float32 [M, K] and targets int64 [M].

    fake: bool [K]. "bc" and "mc" are the entropy (eq. 2 and 6: two logits under a softmax are one under a
    sigmoid); "mt" is (1 - lambda) times it plus lambda times the binary loss (eq. 7-8). A logit beyond K
    belongs to the pseudo-forgeries: it takes part in the entropy, and is in neither sum. Of classes that
    are all real, or all fake, there is no binary loss.
    """
    value = entropy(logits, target)
    if options.scheme != "mt":
        return value
    known = target < len(fake)
    if not known.any() or fake.all() or not fake.any():
        return (1 - options.binary_share) * value
    scores = binary_scores(logits[known, : len(fake)], fake, options.aggregate)
    binary = F.nll_loss(scores, fake.to(target.device)[target[known]].long())
    return (1 - options.binary_share) * value + options.binary_share * binary


def binary_scores(logits: Tensor, fake: Tensor, aggregate: Aggregate) -> Tensor:
    """Return (d_R, d_F) of each row, float32 [M, 2]; the binary loss is -d of the side that is true.

    The forms are those of CDDB's published code, with z a side's logits and s the sigmoid:

        sumlog    d_R = -L_R / (L_R + L_F), L = sum log s(z)
        sumlogit  d_R = log(S_R / (S_R + S_F)), S = sum s(z)
        max       the same with S = max s(z)
        sumfeat   d_R = (log s(S_R) + log(1 - s(S_F))) / 2, S = sum s(z)

    The paper's eq. 9 has the softmax over all logits for s, and does not divide. The code has two forms of
    sumfeat: this one is of its tree of LUCIR, and that of iCaRL sums z itself. The code's iCaRL cuts sumlog
    off from the graph, which is not here. That of DyTox has one more sigmoid, "twice": with p_R and p_F the
    two shares of sumlogit or max, or s(S) of sumfeat, d_R = (log s(p_R) + log(1 - s(p_F))) / 2.
    """
    fake = fake.to(logits.device)
    values = F.logsigmoid(logits) if aggregate == "sumlog" else torch.sigmoid(logits)
    sides = (values[:, ~fake], values[:, fake])
    two = torch.stack([side.amax(1) if "max" in aggregate else side.sum(1) for side in sides], 1)
    share = two / two.sum(1, keepdim=True)
    if aggregate in ("sumlog", "sumlogit", "max"):
        return -share if aggregate == "sumlog" else torch.log(share)
    side = {"sumfeat": two, "sumfeat-twice": torch.sigmoid(two)}.get(aggregate, share)
    return (F.logsigmoid(side) + F.logsigmoid(-side.flip(1))) / 2


def fake_probability(logits: Tensor, fake: Tensor) -> Tensor:
    """Return the softmax mass on the fake logits, float32 [M], for a binary ROC; fake: bool [K]."""
    return torch.softmax(logits, 1)[:, fake.to(logits.device)].sum(1)
