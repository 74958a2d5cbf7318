"""iCaRL: sigmoids held to the previous network's, and the nearest mean of exemplars.

Rebuffi et al. 2017, "iCaRL: incremental classifier and representation learning". Training, algorithm 3:
each logit is a binary question of its own. New classes are asked for their labels, old ones for what
the previous network said, q:
  L = - sum over new y of [y = y_i] log s(z_y) + [y != y_i] log(1 - s(z_y))
      - sum over old y of q_y log s(z_y) + (1 - q_y) log(1 - s(z_y)),
the mean over items; the sums are over all logits, as in the paper (the published code of CDDB takes
their mean). Where distillation is off the old classes are asked for their labels too. Classification,
algorithm 1: the class whose mean of L2-normalised embeddings is nearest to the normalised embedding,
which is a cosine head whose weights are the means. The trained head is kept for the next step.

"bc" has no new logit: both are asked for labels, 0.9, and for q, 0.1, as in the published code of CDDB, and
classify by themselves. "mt" mixes the binary loss with the labels' part (CDDB eq. 7) and keeps the
distillation, as the paper says; its published code drops it there. The class of pseudo-forgeries is one more
logit, always asked for its label. Label smoothing is not used. Heeds every option, but what is distilled
only with "bc": what else a new item's old logits are asked for is the previous network's answer.
OpenCIL's code calls softmax with rehearsal iCaRL, and so does the preset `opencil-icarl`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from detector.model.network import Network
from updater.training import two_stages
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.losses import classification, distilled_items, teacher_logits
from updater.training.schemes import Entropy
from updater.training.step import HEAD_PREFIX, Step, TrainedModel, with_head

_BINARY_DISTILLATION = 0.1


def learn(step: Step) -> TrainedModel:
    """Train a network on a step; its class means classify, unless the scheme is "bc".

    Raises ValueError for a previous network whose trained head was not kept.
    """
    trained = two_stages.train(step, "icarl", lambda network, data: loss_of(step, data))
    if step.options.scheme == "bc":
        return TrainedModel(trained.network, step.classes)
    items = trained.data.known_items
    old = step.previous.network.head.state_dict()["weight"] if step.previous else None
    embedding = trained.output().embedding[torch.from_numpy(items).to(step.device)]
    target = torch.from_numpy(trained.data.targets[items]).to(step.device)
    means = class_means(embedding, target, len(step.classes), old)
    head = trained.network.head.state_dict()
    kept = {HEAD_PREFIX + name: value.detach().clone() for name, value in head.items()}
    return TrainedModel(nearest_mean(trained.network, means), step.classes, kept)


def loss_of(step: Step, data: TrainingSet) -> Loss:
    """Return the loss of a step's batches, labels and distillation together."""
    weight = step.options.distillation
    if step.previous is None or not weight:
        return classification(step, data, sigmoid_entropy(0))
    wanted = teacher_logits(step, data)
    binary = step.options.scheme == "bc"
    # Else a new item's old logits would be asked for nothing.
    rows = distilled_items(step, data) if binary else lambda batch: slice(None)
    labels = classification(step, data, sigmoid_entropy(0 if binary else wanted.shape[1]))
    share = min(1.0, _BINARY_DISTILLATION * weight)
    of_labels, of_teacher = (1 - share, share) if binary else (1.0, weight)

    def total(batch: Batch) -> Tensor:
        held = rows(batch)
        kept = sigmoid_distillation(batch.output.logits[held, : wanted.shape[1]], wanted[batch.items][held])
        return of_labels * labels(batch) + of_teacher * kept

    return total


def sigmoid_entropy(first: int) -> Entropy:
    """Return the binary cross-entropy with the one-hot labels, summed over the logits from `first` on."""

    def entropy(logits: Tensor, target: Tensor) -> Tensor:
        wanted = F.one_hot(target, logits.shape[1]).to(logits.dtype)
        parts = logits[:, first:], wanted[:, first:]
        return F.binary_cross_entropy_with_logits(*parts, reduction="sum") / len(logits)

    return entropy


def sigmoid_distillation(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the binary cross-entropy with the teacher's sigmoids, a scalar; both float32 [M, K] logits.

    0 without rows.
    """
    losses = F.binary_cross_entropy_with_logits(logits, torch.sigmoid(teacher), reduction="sum")
    return losses / max(1, len(logits))


def class_means(embedding: Tensor, target: Tensor, classes: int, before: Tensor | None = None) -> Tensor:
    """Return the L2-normalised mean of each class's L2-normalised embeddings, float32 [K, D].

    embedding: float32 [n, D]; target: int64 [n]. before: the means of earlier classes, float32 [K', D]; one
    without items keeps its own. A new class's mean is over all its items: herding, which comes after,
    chooses exemplars whose mean is near to it.
    """
    sums = embedding.new_zeros(classes, embedding.shape[1])
    sums.index_add_(0, target, F.normalize(embedding, dim=1))
    if before is not None:
        absent = torch.bincount(target, minlength=classes)[: len(before)] == 0
        sums[: len(before)][absent] = before.detach().to(sums.device)[absent]
    return F.normalize(sums, dim=1)


def nearest_mean(network: Network, means: Tensor) -> Network:
    """Return the network in evaluation mode with these means, float32 [K, D], as its cosine head.

    |f - m|^2 = 2 - 2 cos(f, m) for normalised f and m: the largest cosine is the nearest mean. The scale
    stays as a new head has it, since the method has no probabilities to fit it to.
    """
    return with_head(network, {"weight": means}).eval()
