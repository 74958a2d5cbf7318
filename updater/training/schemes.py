"""The schemes of CDDB (Li et al. 2023, section 4): what a logit stands for, and the loss on it.

With "bc" the head has two logits, real and fake, whatever the number of classes. With "mc" and "mt"
each class has its own.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from updater.training.step import Aggregate, Options, is_real


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


Entropy = Callable[[Tensor, Tensor], Tensor]
"""from logits, float32 [M, K], and targets, int64 [M], to a scalar, the mean over items"""


def smoothed(smoothing: float) -> Entropy:
    """Return the softmax cross-entropy with this share of each target spread over all logits."""
    return lambda logits, target: F.cross_entropy(logits, target, label_smoothing=smoothing)


def class_loss(
    logits: Tensor,
    target: Tensor,
    fake: Tensor,
    options: Options,
    entropy: Entropy = F.cross_entropy,
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
        return (1 - options.mt_weight) * value
    scores = binary_scores(logits[known, : len(fake)], fake, options.aggregate)
    is_fake = fake.to(target.device)[target[known]].long()
    binary = -scores.gather(1, is_fake[:, None]).mean()
    return (1 - options.mt_weight) * value + options.mt_weight * binary


def binary_scores(logits: Tensor, fake: Tensor, aggregate: Aggregate) -> Tensor:
    """Return (d_R, d_F) of each row, float32 [M, 2]; the binary loss is -d of the side that is true.

    The paper (eq. 9), with g the softmax over the K logits and every sum over the logits z of one side:
    sumlog (9a) sum log g; sumlogit (9b) log sum g; sumfeat (9c) log softmax over the two sums of z; max
    (9d) max log g. Its published code has s, the sigmoid, for g, and sides divided by both together:
    sumlog-code, d_R = -L_R / (L_R + L_F) with L = sum log s(z); sumlogit-code, d_R = log(S_R / (S_R + S_F))
    with S = sum s(z); max-code, the same with S = max s(z). Its sumfeat is half of log s(A_R) +
    log(1 - s(A_F)), with A = sum z in the tree of iCaRL and A = sum s(z) in those of LUCIR and DyTox. The
    code's iCaRL cuts sumlog off from the graph, which leaves (1 - lambda) times the cross-entropy, and
    DyTox passes the sides through a second sigmoid; neither is offered.
    """
    fake = fake.to(logits.device)
    if aggregate in ("sumlog", "sumlogit", "max"):
        values = F.log_softmax(logits, 1)
    elif aggregate == "sumlog-code":
        values = F.logsigmoid(logits)
    elif aggregate in ("sumfeat", "sumfeat-icarl"):
        values = logits
    else:
        values = torch.sigmoid(logits)
    sides = (values[:, ~fake], values[:, fake])
    if aggregate == "sumlogit":
        return torch.stack([side.logsumexp(1) for side in sides], 1)
    if aggregate in ("max", "max-code"):
        two = torch.stack([side.amax(1) for side in sides], 1)
    else:
        two = torch.stack([side.sum(1) for side in sides], 1)
    if aggregate == "sumfeat":
        return F.log_softmax(two, 1)
    if aggregate == "sumlog-code":
        return -two / two.sum(1, keepdim=True)
    if aggregate in ("sumlogit-code", "max-code"):
        return torch.log(two / two.sum(1, keepdim=True))
    if aggregate in ("sumfeat-icarl", "sumfeat-lucir"):
        return (F.logsigmoid(two) + F.logsigmoid(-two.flip(1))) / 2
    return two


def fake_by_maxima(logits: Tensor, fake: Tensor) -> Tensor:
    """Return CDDB's p_F = M_F / (M_F + M_R) (appendix A.6), float32 [M], in 0..1; fake: bool [K].

    M_F and M_R are the largest softmax outputs among the fakes and among the reals, so this is the sigmoid of
    the difference of the largest logits. 1 where every logit is a fake's, 0 where none is.
    """
    fake = fake.to(logits.device)
    nothing = logits.new_full((len(logits), 1), -torch.inf)
    of_fakes, of_reals = (torch.cat([logits[:, one], nothing], 1).amax(1) for one in (fake, ~fake))
    return torch.sigmoid(of_fakes - of_reals)


def fake_probability(logits: Tensor, fake: Tensor) -> Tensor:
    """Return the softmax mass on the fake logits, float32 [M], for a binary ROC; fake: bool [K]."""
    return torch.softmax(logits, 1)[:, fake.to(logits.device)].sum(1)
