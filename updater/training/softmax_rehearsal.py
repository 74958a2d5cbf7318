"""Softmax with rehearsal, distillation and a balanced head; heeds every option.

One cross-entropy over the known classes and the pseudo-forgeries (Bendale and Boult's K+1st
class). An update starts from the previous network, sees old exemplars beside the new items
(rehearsal), and is held to the previous network's logits of the old classes (distillation: Li and
Hoiem 2016, "Learning without forgetting", eq. 2-3, at temperature 2). The last stage trains what
lies above the pooled features on batches that hold every class equally often, against the bias
towards large and new classes (`two_stages`).
"""

from torch import Tensor

from updater.training import two_stages
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.losses import classification, distillation, distilled, teacher_logits
from updater.training.step import Learnt, Step


def learn(step: Step) -> Learnt:
    """Train a network on a step, from scratch or from the previous one."""
    trained = two_stages.train(
        step,
        "softmax-rehearsal",
        lambda network, data: _with_distillation(classification(step, data), step, data),
    )
    return Learnt(trained.network, step.classes)


def _with_distillation(loss: Loss, step: Step, data: TrainingSet) -> Loss:
    if step.previous is None or not step.options.distillation:
        return loss
    wanted, rows = teacher_logits(step, data), distilled(step, data)

    def total(batch: Batch) -> Tensor:
        held = rows(batch)
        kept = distillation(batch.output.logits[held, : wanted.shape[1]], wanted[batch.items][held])
        return loss(batch) + step.options.distillation * kept

    return total
