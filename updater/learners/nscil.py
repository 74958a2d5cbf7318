"""NSCIL: an update changes each layer only where its earlier inputs had nothing. No memory.

Wang et al. 2021, "Training networks in null space of feature covariance for continual learning" (`null_space`
has the formulas; a = 10). After the first step every linear layer and convolution moves within its null
space; normalisation is fixed, statistics included, and so is whatever else has parameters: the old items'
outputs would change with it. The published code divides the projection by its norm as well, which only
changes the rate; here it is as in the paper.

The paper has a head for each task and is told the task. Here there is one head: it is projected like any
other linear layer, and new logits begin at zero, so that old items keep all their logits. In a cosine head,
which is no linear layer, old classes are fixed and new ones free.

Items of old classes are left out, those of a step that brings no new class aside. Heeds the scheme, the
exposure, the trained rejection and whether the head is balanced. `kept`: "covariance.LAYER" and
"inputs.LAYER", over how many inputs. A release has none: its first update is not projected.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from detector.network import CosineHead, Network
from updater.learners import lucir
from updater.training import normalisation, null_space, schemes, two_stages
from updater.training.loop import Loss, TrainingSet
from updater.training.losses import classification
from updater.training.null_space import Covariances
from updater.training.step import Learnt, Step


def learn(step: Step) -> Learnt:
    """Train a network on the new classes of a step, within the null space of the earlier ones."""
    new = [i for i, family in enumerate(step.train.families) if family not in step.old]
    if new:
        step = replace(step, train=step.train.take(new))
    before = _unpacked(step)
    if not before:
        trained = two_stages.train(step, "nscil", lambda network, data: classification(step, data))
    else:
        projections = {
            name: null_space.projection(mean.to(step.device)) for name, (mean, _) in before.items()
        }

        def loss_of(network: Network, data: TrainingSet) -> Loss:
            _fix_the_rest(network, projections, len(schemes.columns(step.old, step.options)))
            return classification(step, data)

        trained = two_stages.train(
            step, "nscil", loss_of, update=partial(null_space.projected_update, projections=projections)
        )
        _release(trained.network)
    network = trained.network
    now = null_space.covariances(network, trained.data.crops, trained.data.features)
    return Learnt(network, step.classes, _packed(null_space.merged(before, now)))


def _fix_the_rest(network: Network, projected: Collection[str], old: int) -> None:
    """Leave only what is projected to be trained, and a cosine head's classes from `old` on."""
    normalisation.fix(network)
    network.requires_grad_(False)
    for name in projected:
        network.get_submodule(name).requires_grad_(True)
    if isinstance(network.head, CosineHead):
        network.head.weight.requires_grad_(True)
        lucir.fix_old(network.head, old)
    else:
        with torch.no_grad():
            for value in network.head.parameters():
                value[old:] = 0


def _release(network: Network) -> None:
    normalisation.release(network)
    if isinstance(network.head, CosineHead):
        lucir.release(network.head)
    network.requires_grad_(True).eval()


def _packed(found: Covariances) -> dict[str, Tensor]:
    kept = {f"covariance.{name}": mean.cpu() for name, (mean, _) in found.items()}
    return kept | {f"inputs.{name}": torch.tensor(count).double().cpu() for name, (_, count) in found.items()}


def _unpacked(step: Step) -> Covariances:
    kept = step.previous.kept if step.previous else {}
    names = [key.removeprefix("covariance.") for key in kept if key.startswith("covariance.")]
    return {name: (kept[f"covariance.{name}"], float(kept[f"inputs.{name}"])) for name in names}
