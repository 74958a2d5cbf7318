"""DyTox: a transformer that grows by one learnt token and one classifier a task.

Douillard et al. 2022, "DyTox: transformers for continual learning with dynamic token expansion". The network
is in `task_tokens`; its published size is convit_base at 224 px, width 768, without forensic features.

First stage: L = (1 - alpha) L_clf + alpha L_kd + 0.1 L_div.
  L_clf: the classification loss with the binary cross-entropy of each logit, mean over logits; as in CDDB's
    published code, the binary loss of "mt" is not multiplied by 1 - alpha;
  L_kd: KL(softmax(old network's logits) || softmax(logits of old classes)), the mean over items and, as in
    the published code, over the old classes; alpha = |old| / |all classes|, times options.distillation;
  L_div: the binary cross-entropy, mean over logits, of an auxiliary classifier on the newest task's embedding
    over the new classes and one class of all that is past; not in the first step.
Old tokens, old classifiers and their norms are fixed; the attention and the backbone go on learning.
Second stage (balanced), also as in the published code: what lies above the patch tokens, old tokens and
classifiers with it, learns by L_clf alone.

Heeds every option. The paper has no "bc" (CDDB section 5 says why); here the classifiers of all tasks
then add up to two logits. The head is linear. A network goes on only from one of its own. Keeps nothing. The
auxiliary classifier has no norm of its own: it reads what the newest task's norm gives.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from detector.model.network import Network
from updater.benchmark.learners.lucir import teacher_output
from updater.benchmark.learners.task_tokens import TaskTokens, grow_network
from updater.training import schemes, two_stages
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.losses import classification, distillation, distilled_items
from updater.training.step import Step, TrainedModel
from updater.training.weights import put

DIVERGENCE = 0.1
"""lambda of the paper"""
_NO_CLASS = -100


def learn(step: Step) -> TrainedModel:
    """Train a network on a step, from scratch or from the previous one.

    Raises ValueError for a cosine head, for a previous network that is none of DyTox's, and for a backbone
    without a last feature map.
    """
    if step.architecture.head != "linear":
        raise ValueError(f"dytox has a linear head, not {step.architecture.head!r}")
    first, second = partial(_loss, step), partial(_balanced_loss, step)
    trained = two_stages.train(step, "dytox", first, balanced_of=second, start=start)
    network = trained.network
    assert isinstance(network, TaskTokens)
    network.divergence = None
    return TrainedModel(network.requires_grad_(True).eval(), step.classes)


def start(step: Step) -> Network:
    """Return a new network, or the previous one with a token for the new classes, if there are any.

    Then what the earlier tasks have of their own is fixed.
    """
    count = len(schemes.columns(step.classes, step.options))
    if step.previous is None:
        first = TaskTokens(step.architecture, [(0, count)])
        if step.start_from is not None:
            put(first, step.start_from, step.classes)
        return first.to(step.device)
    old = step.previous.network.to(step.device)
    if not isinstance(old, TaskTokens):
        raise ValueError("dytox goes on from a network of its own only")
    tasks = list(old.head.tasks)
    if _new(step):
        tasks.append((0 if step.options.scheme == "bc" else tasks[-1][1], count))
    network = grow_network(old, tasks)
    if new := len(_new(step)):
        network.divergence = torch.nn.Linear(step.architecture.width, new + 1).to(step.device)
        for task in range(len(old.tokens)):
            network.tokens[task].requires_grad_(False)
            network.norms[task].requires_grad_(False)
            network.head.parts[task].requires_grad_(False)
    return network


def _balanced_loss(step: Step, network: Network, data: TrainingSet) -> Loss:
    network.requires_grad_(True)
    return classification(step, data, binary_entropy)


def _loss(step: Step, network: Network, data: TrainingSet) -> Loss:
    assert isinstance(network, TaskTokens)
    if step.previous is None:
        return classification(step, data, binary_entropy)
    share = min(1.0, step.options.distillation * len(step.old) / len(step.classes))
    loss = classification(step, data, lambda logits, target: (1 - share) * binary_entropy(logits, target))
    teacher, rows = teacher_output(step, data) if share else None, distilled_items(step, data)
    labels = past_or_new(step, len(data.targets)).to(step.device)

    def total(batch: Batch) -> Tensor:
        value = loss(batch)
        if teacher is not None:
            held, before = rows(batch), teacher(batch).logits
            value = value + share * mean_divergence(batch.output.logits[held], before[held])
        return value + DIVERGENCE * divergence(network, batch.output.embedding, labels[batch.items])

    return total


def mean_divergence(logits: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return L_kd, a scalar; float32 [M, K] and [M, K of before]. The mean over both axes, times T^2."""
    old = teacher.shape[1]
    return distillation(logits[:, :old], teacher, temperature) / old


def binary_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean of each logit's binary cross-entropy, a scalar; float32 [M, K], int64 [M]."""
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(target, logits.shape[1]).float())


def past_or_new(step: Step, items: int) -> Tensor:
    """Return each item's class for the divergence, int64 [items].

    0 is the past, 1, 2, ... the new classes in their order; a pseudo-forgery, behind the items, has none.
    """
    place = {name: number for number, name in enumerate(_new(step), 1)}
    known = torch.tensor([place.get(family, 0) for family in step.train.families])
    return F.pad(known, (0, items - len(known)), value=_NO_CLASS)


def divergence(network: TaskTokens, embedding: Tensor, labels: Tensor) -> Tensor:
    """Return L_div over the rows that have a class, a scalar, 0 where there are none.

    embedding: float32 [M, t * D + forensic]; labels: int64 [M], of `past_or_new`.
    """
    known = labels != _NO_CLASS
    if network.divergence is None or not known.any():
        return embedding.sum() * 0
    return binary_entropy(network.divergence(network.newest(embedding))[known], labels[known])


def _new(step: Step) -> tuple[str, ...]:
    return step.classes[len(step.old) :]
