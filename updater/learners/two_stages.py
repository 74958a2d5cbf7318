"""How most learners train: the whole network on crops, then what lies above its pooled features on rows.

The second stage draws every class equally often (balanced fine-tuning: Castro et al. 2018, "End-to-end
incremental learning", section 4.3) unless the options say otherwise. It costs next to nothing, since the
backbone then runs once for each crop.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from detector.network import Network, NetworkOutput
from updater.learners import training
from updater.learners.pools import backbone_rows, classify_items
from updater.learners.step import Step
from updater.learners.training import Loss, Training, TrainingSet, item_weights


@dataclass(frozen=True)
class Trained:
    """A network in evaluation mode, and what it was trained on."""

    network: Network
    data: TrainingSet
    rows: Tensor
    """float32 [T, B], its backbone's features of each crop"""

    def output(self) -> NetworkOutput:
        """Return what the network says of each whole item, pseudo-forgeries among them."""
        return classify_items(self.network, self.rows, self.data.features, self.data.starts)


def train(step: Step, method: str, loss_of: Callable[[Network, TrainingSet], Loss]) -> Trained:
    """Train a network on a step, from scratch or from the previous one.

    method: the learner's name, to which a checkpoint is bound. loss_of: makes the loss from the network
    as it begins; it may freeze parts of it. The global random state is left as it was.
    """
    saved = training.checkpoint(step, method, ("backbone", "balanced"))
    with torch.random.fork_rng(devices=[step.device] if step.device.type == "cuda" else []):
        torch.manual_seed(step.seed)
        network = training.start(step)
        data = training.training_set(step, network)
        if step.previous is None:
            training.standardise(network, data.features[: len(step.train.crops)])
        loss = loss_of(network, data)
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
    return Trained(network.eval(), data, rows)
