"""Softmax with rehearsal, distillation and a balanced head; heeds every option.

One cross-entropy over the known classes and the pseudo-forgeries (Bendale and Boult's K+1st
class). An update starts from the previous network, sees old exemplars beside the new items
(rehearsal), and is held to the previous network's logits of the old classes (distillation: Li and
Hoiem 2016, "Learning without forgetting", eq. 2-3, at temperature 2). The last stage trains what
lies above the pooled features on batches that hold every class equally often, against the bias
towards large and new classes (balanced fine-tuning: Castro et al. 2018, "End-to-end incremental
learning", section 4.3).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from updater.learners import training
from updater.learners.losses import classification
from updater.learners.pools import backbone_rows, classify_items
from updater.learners.step import Learnt, Step
from updater.learners.training import Batch, Loss, Training, TrainingSet, item_weights

_TEMPERATURE = 2.0


def learn(step: Step) -> Learnt:
    """Train a network on a step, from scratch or from the previous one."""
    saved = training.checkpoint(step, "softmax-rehearsal", ("backbone", "balanced"))
    with torch.random.fork_rng(devices=[step.device] if step.device.type == "cuda" else []):
        torch.manual_seed(step.seed)
        network = training.start(step)
        data = training.training_set(step, network)
        if step.previous is None:
            training.standardise(network, data.features[: len(step.train.crops)])
        loss = _with_distillation(classification(step, data), step, data)
        run, recipe = Training(step, data, saved), step.recipe
        weights = item_weights(data.targets, 0.5)
        run.run("backbone", network, loss, weights, steps=recipe.backbone_steps, rate=recipe.backbone_rate)
        rows = backbone_rows(
            network, data.crops, step.device, lambda *at: step.progress("backbone features", *at)
        )
        weights = item_weights(data.targets, 1.0 if step.options.balanced else 0.0)
        run.run(
            "balanced",
            network,
            loss,
            weights,
            steps=recipe.balanced_steps,
            rate=recipe.balanced_rate,
            rows=rows,
        )
    saved.remove()
    return Learnt(network.eval(), step.classes)


def _with_distillation(loss: Loss, step: Step, data: TrainingSet) -> Loss:
    if step.previous is None or not step.options.distillation:
        return loss
    wanted = teacher_logits(step, data)

    def total(batch: Batch) -> Tensor:
        kept = distillation(batch.output.logits[:, : wanted.shape[1]], wanted[batch.items])
        return loss(batch) + step.options.distillation * kept

    return total


def teacher_logits(step: Step, data: TrainingSet) -> Tensor:
    """Return the previous network's logits of each whole item, float32 [n, K of before], computed once."""
    assert step.previous is not None
    old = step.previous.network.to(step.device)
    rows = backbone_rows(old, data.crops, step.device)
    return classify_items(old, rows, data.features, data.starts).logits


def distillation(logits: Tensor, teacher: Tensor, temperature: float = _TEMPERATURE) -> Tensor:
    """Return T^2 * mean KL(softmax(teacher / T) || softmax(logits / T)), a scalar; both float32 [M, K]."""
    return temperature**2 * F.kl_div(
        F.log_softmax(logits / temperature, 1), F.softmax(teacher / temperature, 1), reduction="batchmean"
    )
