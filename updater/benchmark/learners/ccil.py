"""CCIL: new items among new classes, exemplars among all, and distillation of both.

Mittal et al. 2021, "Essentials for class incremental learning", in the form of its released code. An update's
loss is
  L = CE(new logits) over new items + CE(all logits) over exemplars + lambda * (KD over new items + KD over
    exemplars), lambda = 5 * (|all| / |new|)^0.66,
KD the divergence of the old logits at temperature 2, times 4, the mean over items and over old classes. There
new classes, too, have exemplars before an update, as many as an old class. Here a batch has an item with a
chance of 1/sqrt of its class's items: where an old class has m exemplars, sqrt(n m) of a new class's n items
are some, and each class is drawn as often among exemplars.

options.distillation multiplies lambda; at 0 it is CDDB's CCIL*. "bc" has no new logit: all items are asked of
both. Label smoothing is of the first task and of new items, as in the released code; Mixup is of all. Heeds
every option but what is distilled.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from detector.model.scores import NetworkOutput
from updater.benchmark.learners.dytox import mean_divergence
from updater.benchmark.learners.lucir import teacher_output
from updater.training import schemes, two_stages
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.losses import TEMPERATURE, classification
from updater.training.step import Step, TrainedModel


def learn(step: Step) -> TrainedModel:
    """Train a network on a step, from scratch or from the previous one."""
    trained = two_stages.train(step, "ccil", lambda network, data: loss_of(step, data))
    return TrainedModel(trained.network, step.classes)


def loss_of(step: Step, data: TrainingSet) -> Loss:
    """Return the loss of a step's batches, labels and distillation together."""
    old, weight = len(step.old), step.options.distillation
    if step.previous is None:
        return classification(step, data)
    among_all = classification(step, data, schemes.smooth(0))
    smooth = schemes.smooth(step.recipe.label_smoothing)
    among_new = classification(step, data, lambda logits, target: smooth(logits[:, old:], target - old))
    teacher = teacher_output(step, data) if weight else None
    weight *= 5 * math.pow(len(step.classes) / max(1, len(step.classes) - old), 0.66)
    new, exemplars = (part.to(step.device) for part in parts_of(step, len(data.targets)))

    def labels(batch: Batch) -> Tensor:
        if (share := batch.mixed) is not None:
            own = replace(batch, mixed=None)
            other = replace(own, target=batch.target.flip(0), items=batch.items.flip(0))
            return share * labels(own) + (1 - share) * labels(other)
        value = batch.output.logits.sum() * 0
        if (rows := new[batch.items]).any():
            value = value + among_new(_take(replace(batch, outliers=None), rows))
        if (rows := exemplars[batch.items]).any() or batch.outliers is not None:
            value = value + among_all(_take(batch, rows))
        return value

    def total(batch: Batch) -> Tensor:
        if teacher is None:
            return labels(batch)
        logits, before = batch.output.logits, teacher(batch).logits
        parts = [part[batch.items] for part in (new, exemplars)]
        of_new, of_old = (mean_divergence(logits[rows], before[rows], TEMPERATURE) for rows in parts)
        return labels(batch) + weight * (of_new + of_old)

    return total


def parts_of(step: Step, items: int) -> tuple[Tensor, Tensor]:
    """Return which of a training set's items are of new classes, and which are exemplars, bool [items].

    Pseudo-forgeries, which come last, are exemplars.
    """
    families, exemplars = np.array(step.train.families), np.ones(items, bool)
    new = np.pad(~np.isin(families, step.old), (0, items - len(families)))
    if step.options.scheme == "bc":
        return torch.zeros(items, dtype=torch.bool), torch.from_numpy(exemplars)
    kept = (len(families) - new.sum()) / len(step.old)
    for name in step.classes[len(step.old) :]:
        own = np.flatnonzero(families == name)
        exemplars[own] = False
        exemplars[own[np.linspace(0, len(own) - 1, round((len(own) * kept) ** 0.5)).astype(np.int64)]] = True
    return torch.from_numpy(new), torch.from_numpy(exemplars)


def _take(batch: Batch, rows: Tensor) -> Batch:
    """Return these of a batch's items, bool [M], beside its fresh pseudo-forgeries."""
    output = NetworkOutput(*(part[rows] for part in batch.output))
    crops = batch.crops[rows.cpu().numpy()]
    return replace(batch, output=output, items=batch.items[rows], target=batch.target[rows], crops=crops)
