"""Distillation of some learners: the previous network's output on crops, and its weight."""

from collections.abc import Callable

import torch
from torch import Tensor

from detector.model.scores import NetworkOutput
from updater.training.crop_rows import backbone_rows, rows_at
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.losses import distilled_items, soft_cross_entropy, teacher_logits
from updater.training.step import Step, load_trained


def teacher_output(step: Step, data: TrainingSet) -> Callable[[Batch], NetworkOutput]:
    """Return the previous network's output on the very crops of a batch; its backbone runs only once."""
    assert step.previous is not None
    old = load_trained(step.previous).to(step.device)
    rows = backbone_rows(old, data.crops, step.device)

    def of(batch: Batch) -> NetworkOutput:
        with torch.no_grad():
            return old.classify(*(rows_at(x, batch.crops, step.device) for x in (rows, data.features)))

    return of


def interpolate(loss: Loss, step: Step, data: TrainingSet) -> Loss:
    """Return (1 - lambda) * loss + lambda * distillation, lambda = |old| / |all classes|.

    Wu et al. 2019 (BiC), eq. 4, and Zhao et al. 2020 (WA), eq. 4: the more there is to keep, the more
    keeping weighs. options.distillation multiplies lambda; the first step has nothing to keep.
    """
    share = min(1.0, step.options.distillation * len(step.old) / len(step.classes))
    if not share:
        return loss
    wanted, rows = teacher_logits(step, data), distilled_items(step, data)

    def total(batch: Batch) -> Tensor:
        held = rows(batch)
        logits = batch.output.logits[held, : wanted.shape[1]]
        kept = soft_cross_entropy(logits, wanted[batch.items][held])
        return (1 - share) * loss(batch) + share * kept

    return total
