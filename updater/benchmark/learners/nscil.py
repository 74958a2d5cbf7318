"""NSCIL: an update changes each layer only where its earlier inputs had nothing. No memory.

Wang et al. 2021, "Training networks in null space of feature covariance for continual learning" (`null_space`
has the formulas; a = 10). After the first step every linear layer and convolution moves within its null
space; normalisation is fixed, statistics included, and so is whatever else has parameters: the old items'
outputs would change with it. The published code divides the projection by its norm as well, which only
changes the rate; here it is as in the paper.

The paper has a head for each task and is told the task: a new task's head is trained freely, and those of
earlier ones no longer. Here there is one head, so the rows of new classes are free and those of old ones
fixed: an old item keeps its old logits and may get any of the new ones. Where there is no new row ("bc", and
a step without a new class) a linear head is projected like any other linear layer.

Items of old classes are left out, those of a step that brings no new class aside. Heeds the scheme
and the exposure. `kept`: "covariance.LAYER" and
"inputs.LAYER", over how many inputs. A release has none: its first update is not projected.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from detector.model.network import Network
from updater.benchmark.learners import lucir, normalisation, null_space
from updater.benchmark.learners.null_space import Covariances
from updater.training import schemes, two_stages
from updater.training.loop import Loss, TrainingSet
from updater.training.losses import classification
from updater.training.step import Learnt, Step

_HEAD = "head"


def learn(step: Step) -> Learnt:
    """Train a network on the new classes of a step, within the null space of the earlier ones."""
    new = [i for i, family in enumerate(step.train.families) if family not in step.old]
    if new:
        step = replace(step, train=step.train.take(new))
    before = _unpacked(step)
    if not before:
        trained = two_stages.train(step, "nscil", lambda network, data: classification(step, data))
    else:
        old = len(schemes.columns(step.old, step.options))
        free = old < len(schemes.columns(step.classes, step.options))
        projections = {
            name: null_space.projection(mean.to(step.device))
            for name, (mean, _) in before.items()
            if not (free and name == _HEAD)
        }

        def loss_of(network: Network, data: TrainingSet) -> Loss:
            _fix_the_rest(network, projections, old)
            return classification(step, data)

        trained = two_stages.train(
            step, "nscil", loss_of, update=partial(null_space.projected_update, projections=projections)
        )
        _release(trained.network)
    network = trained.network
    now = null_space.covariances(network, trained.data.crops, trained.data.features)
    return Learnt(network, step.classes, _packed(null_space.merged(before, now)))


def _fix_the_rest(network: Network, projected: Collection[str], old: int) -> None:
    """Leave only what is projected to be trained, and a head's rows from `old` on where it is not."""
    normalisation.fix(network)
    network.requires_grad_(False)
    for name in projected:
        network.get_submodule(name).requires_grad_(True)
    if _HEAD not in projected:
        for value in network.head.parameters():
            # A cosine head's scale moves the logits of old items too.
            value.requires_grad_(value.ndim > 0)
        lucir.fix_old(network.head, old)


def _release(network: Network) -> None:
    normalisation.release(network)
    lucir.release(network.head)
    network.requires_grad_(True).eval()


def _packed(found: Covariances) -> dict[str, Tensor]:
    kept = {f"covariance.{name}": mean.cpu() for name, (mean, _) in found.items()}
    return kept | {f"inputs.{name}": torch.tensor(count).double().cpu() for name, (_, count) in found.items()}


def _unpacked(step: Step) -> Covariances:
    kept = step.previous.kept if step.previous else {}
    names = [key.removeprefix("covariance.") for key in kept if key.startswith("covariance.")]
    return {name: (kept[f"covariance.{name}"], float(kept[f"inputs.{name}"])) for name in names}
