"""LUCIR: cosines instead of inner products, embeddings that may not turn, new classes kept apart from old.

Hou et al. 2019, "Learning a unified classifier incrementally via rebalancing", eq. 9. To the classification
loss an update adds
  lambda * L_G, L_G = mean of 1 - cos(f*(x), f(x)) over the items, f* the previous network's embedding
    (eq. 6), lambda = base * sqrt(|old| / |new|) (section 3.4): the more there is to keep, the more it weighs;
  L_mr, the mean over exemplars and over the K = 2 new classes k with the highest score of
    max(margin - s_y + s_k, 0), y the exemplar's own class. Eq. 8 prints the sum over k; the published code,
    CDDB's too, takes the mean, and its weights of L_mr are for that.
The weights of old classes are fixed. The architecture's head says which of two: "cosine" (eq. 4) is the
paper, where s is the cosine, base = 5, margin = 0.5 and L_mr weighs 1; "linear" is CDDB's LUCIR-LinFC, where
s is the logit and, as in its published code, base = 0.5, margin = 0.2 and L_mr weighs 0.1. "bc" has no new
logit: no ranking, nothing fixed. options.distillation multiplies lambda. Heeds every option.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from detector.model.network import CosineHead, Network
from detector.model.scores import NetworkOutput
from updater.training import two_stages
from updater.training.crop_rows import backbone_rows, rows_at
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.losses import classification, distilled_items
from updater.training.step import Step, TrainedModel, load_trained

_OF_HEAD = {"cosine": (5.0, 0.5, 1.0), "linear": (0.5, 0.2, 0.1)}
"""base, margin and the weight of L_mr"""


def learn(step: Step) -> TrainedModel:
    """Train a network on a step, from scratch or from the previous one."""
    old = len(step.old) if step.options.scheme != "bc" else 0

    def loss_of(network: Network, data: TrainingSet) -> Loss:
        if old:
            fix_old(network.head, old)
        return _loss(step, network, data, old)

    network = two_stages.train(step, "lucir", loss_of).network
    if old:
        release(network.head)
    return TrainedModel(network, step.classes)


def _loss(step: Step, network: Network, data: TrainingSet, old: int) -> Loss:
    loss = classification(step, data)
    if step.previous is None:
        return loss
    base, margin, ranking = _OF_HEAD[step.architecture.head]
    weight = step.options.distillation * adaptive_weight(base, len(step.old), len(step.classes))
    teacher, rows = teacher_output(step, data), distilled_items(step, data)

    def total(batch: Batch) -> Tensor:
        value = loss(batch)
        if weight:
            held = rows(batch)
            kept = less_forget(batch.output.embedding[held], teacher(batch).embedding[held])
            value = value + weight * kept
        if 0 < old < len(step.classes):
            scores = batch.output.logits
            if isinstance(network.head, CosineHead):
                scores = scores / network.head.scale
            value = value + ranking * margin_ranking(scores, batch.target, old, margin)
        return value

    return total


def teacher_output(step: Step, data: TrainingSet) -> Callable[[Batch], NetworkOutput]:
    """Return the previous network's output on the very crops of a batch; its backbone runs only once."""
    assert step.previous is not None
    old = load_trained(step.previous).to(step.device)
    rows = backbone_rows(old, data.crops, step.device)

    def of(batch: Batch) -> NetworkOutput:
        with torch.no_grad():
            return old.classify(*(rows_at(x, batch.crops, step.device) for x in (rows, data.features)))

    return of


def adaptive_weight(base: float, old: int, classes: int) -> float:
    """Return lambda = base * sqrt(|old| / |new|), from the numbers of old and of all classes.

    A step without a new class counts as one with one.
    """
    return base * math.sqrt(old / max(1, classes - old))


def less_forget(embedding: Tensor, before: Tensor) -> Tensor:
    """Return the mean of 1 - cos of each row's embeddings, a scalar in 0..2; both float32 [M, D].

    0 without rows.
    """
    return (1 - F.cosine_similarity(embedding, before, dim=1)).sum() / max(1, len(embedding))


def margin_ranking(scores: Tensor, target: Tensor, old: int, margin: float) -> Tensor:
    """Return L_mr over the rows of old classes, a scalar, 0 where there are none.

    scores: float32 [M, K]; target: int64 [M]; the classes from `old` on are new. All new classes are the
    hardest where there are fewer of them.
    """
    exemplar = target < old
    own = scores[exemplar].gather(1, target[exemplar, None])
    new = scores[exemplar, old:]
    rivals = new.topk(min(2, new.shape[1]), 1).values
    hinges = F.relu(margin - own + rivals)
    return hinges.sum() / max(1, hinges.numel())


class _Fixed(nn.Module):
    """The first rows of a tensor as they were; neither gradient nor decay reaches them."""

    rows: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows)

    def forward(self, whole: Tensor) -> Tensor:
        return torch.cat([self.rows, whole[len(self.rows) :]])


def fix_old(head: nn.Module, old: int) -> None:
    """Fix a head's weights of the first `old` classes, and their biases where it has any."""
    for name, value in list(head.named_parameters()):
        if value.ndim:
            parametrize.register_parametrization(head, name, _Fixed(value.detach()[:old].clone()))


def release(head: nn.Module) -> None:
    """Undo `fix_old`; the weights stay as they are now."""
    for name in ("weight", "bias"):
        if parametrize.is_parametrized(head, name):
            parametrize.remove_parametrizations(head, name)
