"""The stream's learner, and how most learners train: the whole network on crops, then its head on rows.

The second stage trains what lies above the pooled features and draws every class equally often (balanced
fine-tuning: Castro et al. 2018, "End-to-end incremental learning", section 4.3). It costs next to nothing,
since the backbone then runs once for each crop.

The stream's learner is softmax with rehearsal and distillation. One cross-entropy goes over the known classes
and the pseudo-forgeries (Bendale and Boult's K+1st class). An update starts from the previous network, sees
old exemplars beside the new items (rehearsal), and is held to the previous network's logits of the old
classes (distillation: Li and Hoiem 2016, "Learning without forgetting", eq. 2-3, at temperature 2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from detector.model.backbone import NoBackbone
from detector.model.network import Network
from detector.model.scores import NetworkOutput
from updater.training import loop
from updater.training.crop_rows import Rows, backbone_rows, classify_items
from updater.training.loop import Batch, Loss, Training, TrainingSet, Update, item_weights
from updater.training.losses import classification, distillation, distilled_items, teacher_logits
from updater.training.step import Step, TrainedModel

STAGES = ("backbone", "balanced")


@dataclass(frozen=True)
class TwoStageModel:
    """A network in evaluation mode, and its training data."""

    network: Network
    data: TrainingSet
    rows: Rows
    """float32 [T, B], its backbone's features of each crop"""

    def output(self) -> NetworkOutput:
        """Return the network's output for each whole item, pseudo-forgeries among them."""
        return classify_items(self.network, self.rows, self.data.features, self.data.starts)


def train(
    step: Step,
    method: str,
    loss_of: Callable[[Network, TrainingSet], Loss],
    *,
    balanced_of: Callable[[Network, TrainingSet], Loss] | None = None,
    start: Callable[[Step], Network] = loop.start,
    below: float = 1.0,
    update: Update = lambda network, optimiser: optimiser.step(),
) -> TwoStageModel:
    """Train a network on a step, from scratch or from the previous one.

    method: the learner's name, to which a checkpoint is bound. loss_of: makes the loss from the network
    as it begins; it may freeze parts of it. balanced_of: makes that of the second stage once the first is
    over, and may free them again; else it is the same. start, below, update: as `loop.start` and
    `Training.run` say. The global random state is left as it was.
    """
    saved = loop.checkpoint(step, method, STAGES)
    with torch.random.fork_rng(devices=[step.device] if step.device.type == "cuda" else []):
        torch.manual_seed(step.seed)
        network = start(step)
        data = loop.training_set(step, network)
        # Weights of a whole network were learnt with scales of their own.
        if step.previous is None and not (step.start_from and step.start_from.whole):
            loop.whiten(network, step, data)
        loss = loss_of(network, data)
        second = None if balanced_of is None else partial(balanced_of, network, data)
        rows = run_both(
            Training(step, data, saved), network, loss, balanced=second, below=below, update=update
        )
    saved.remove()
    return TwoStageModel(network.eval(), data, rows)


def run_both(
    run: Training,
    network: Network,
    loss: Loss,
    *,
    balanced: Callable[[], Loss] | None = None,
    below: float = 1.0,
    update: Update = lambda network, optimiser: optimiser.step(),
) -> Rows:
    """Run both stages and return the backbone's features of each crop, float32 [T, B].

    balanced: makes the loss of the second; else it is the first's.
    """
    step, data, recipe = run.step, run.data, run.step.recipe
    run.run(
        "backbone",
        network,
        loss,
        item_weights(data.targets, 0.5),
        steps=0 if isinstance(network.backbone, NoBackbone) else recipe.backbone_steps,
        rate=recipe.backbone_rate,
        below=below,
        update=update,
    )
    rows = backbone_rows(
        network, data.crops, step.device, lambda *at: step.progress("backbone features", *at)
    )
    run.run(
        "balanced",
        network,
        balanced() if balanced else loss,
        item_weights(data.targets, 1.0),
        steps=recipe.balanced_steps,
        rate=recipe.balanced_rate,
        rows=rows,
        update=update,
    )
    return rows


def learn(step: Step) -> TrainedModel:
    """Train a network on a step by softmax with rehearsal; heeds every option."""

    def loss(network: Network, data: TrainingSet) -> Loss:
        return _with_distillation(classification(step, data), step, data)

    trained = train(step, "softmax-rehearsal", loss)
    return TrainedModel(trained.network, step.classes)


def _with_distillation(loss: Loss, step: Step, data: TrainingSet) -> Loss:
    if step.previous is None or not step.options.distillation:
        return loss
    wanted, rows = teacher_logits(step, data), distilled_items(step, data)

    def total(batch: Batch) -> Tensor:
        held = rows(batch)
        kept = distillation(batch.output.logits[held, : wanted.shape[1]], wanted[batch.items][held])
        return loss(batch) + step.options.distillation * kept

    return total
