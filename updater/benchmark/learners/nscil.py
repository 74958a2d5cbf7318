"""NSCIL: an update changes each layer only where its earlier inputs had nothing. No memory.

Wang et al. 2021, "Training networks in null space of feature covariance for continual learning" (formulas
below; a = 10). After the first step every linear layer and convolution moves within its null space;
normalisation is fixed, statistics included, and so is whatever else has parameters: the old items' outputs
would change with it. The published code divides the projection by its norm as well, which only changes the
rate; here it is as in the paper.

The paper has a head for each task and is told the task: a new task's head is trained freely, and those of
earlier ones no longer. Here there is one head, so the rows of new classes are free and those of old ones
fixed: an old item keeps its old logits and may get any of the new ones. Where there is no new row ("bc", and
a step without a new class) a linear head is projected like any other linear layer.

Items of old classes are left out, those of a step that brings no new class aside. Heeds the scheme and the
exposure. `kept`: "covariance.LAYER" and "inputs.LAYER", over how many inputs. A release has none: its first
update is not projected.

Per layer, C = X^T X / n is the uncentred covariance of its n inputs X over all earlier steps; that of two
sets is their mean weighted by n, so that C and n alone are kept. The eigenvectors U of C whose eigenvalues
(C's singular values) are at most a times the smallest span its approximate null space. The step D that Adam
would make becomes D U U^T. Over the old inputs x the mean of |D U U^T x|^2 is then at most a * smallest *
|D|^2.

Layers are `nn.Linear` and plain convolutions, which are linear layers over unfolded patches. A grouped
convolution is one linear layer a group with a covariance each; for a depthwise one these are k^2 by k^2, one
a channel. Where a layer has a bias, 1 is appended to its inputs, so that the bias moves with the weights.
"""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.norm_act import freeze_batch_norm_2d, unfreeze_batch_norm_2d
from timm.layers.padding import pad_same
from torch import Tensor, nn

from detector.model.network import Network
from updater.benchmark.learners import lucir
from updater.training import schemes, two_stages
from updater.training.crop_rows import Crops, Rows, as_images
from updater.training.loop import Loss, TrainingSet
from updater.training.losses import classification
from updater.training.step import Step, TrainedModel

_HEAD = "head"
SINGULAR_RATIO = 10.0
"""a, as in the published code"""
_ROUNDING = 1e-6
"""eigenvalues below this share of the largest are zero, as far as float32 inputs can tell"""
_CROPS_AT_ONCE = 16

Covariances = dict[str, tuple[Tensor, float]]
"""by layer: the mean of x x^T, float32 [groups, d, d], and over how many inputs"""


def learn(step: Step) -> TrainedModel:
    """Train a network on the new classes of a step, within the null space of the earlier ones."""
    new = [i for i, family in enumerate(step.train.families) if family not in step.old]
    if new:
        step = replace(step, train=step.train.take(new))
    before = _unpack_covariances(step)
    if not before:
        trained = two_stages.train(step, "nscil", lambda network, data: classification(step, data))
    else:
        old = len(schemes.columns(step.old, step.options))
        free = old < len(schemes.columns(step.classes, step.options))
        projections = {
            name: projection(mean.to(step.device))
            for name, (mean, _) in before.items()
            if not (free and name == _HEAD)
        }

        def loss_of(network: Network, data: TrainingSet) -> Loss:
            _fix_the_rest(network, projections, old)
            return classification(step, data)

        trained = two_stages.train(
            step, "nscil", loss_of, update=partial(projected_update, projections=projections)
        )
        release_normalisation(trained.network)
        lucir.release(trained.network.head)
        trained.network.requires_grad_(True).eval()
    network = trained.network
    now = covariances(network, trained.data.crops, trained.data.features)
    return TrainedModel(network, step.classes, _pack_covariances(merge_covariances(before, now)))


def _fix_the_rest(network: Network, projected: Collection[str], old: int) -> None:
    """Leave only projected layers trainable, and a head's rows from `old` on where it is not projected."""
    fix_normalisation(network)
    network.requires_grad_(False)
    for name in projected:
        network.get_submodule(name).requires_grad_(True)
    if _HEAD not in projected:
        for value in network.head.parameters():
            # A cosine head's scale moves the logits of old items too.
            value.requires_grad_(value.ndim > 0)
        lucir.fix_old(network.head, old)


def _pack_covariances(pairs: Covariances) -> dict[str, Tensor]:
    kept = {f"covariance.{name}": mean.cpu() for name, (mean, _) in pairs.items()}
    return kept | {f"inputs.{name}": torch.tensor(count).double().cpu() for name, (_, count) in pairs.items()}


def _unpack_covariances(step: Step) -> Covariances:
    kept = step.previous.kept if step.previous else {}
    names = [key.removeprefix("covariance.") for key in kept if key.startswith("covariance.")]
    return {name: (kept[f"covariance.{name}"], float(kept[f"inputs.{name}"])) for name in names}


def layers(network: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """Return the layers whose updates can be projected, by name; those that change their weights are not."""
    return {
        name: module
        for name, module in network.named_modules()
        if type(module) in (nn.Linear, nn.Conv2d, Conv2dSame) and isinstance(module, nn.Linear | nn.Conv2d)
    }


def inputs(layer: nn.Linear | nn.Conv2d, given: Tensor) -> Tensor:
    """Return the inputs of a layer's weights, float32 [groups, n, d].

    given: [..., d] for a linear layer, [N, C, H, W] for a convolution, where n is N times the places of its
    output and d is C / groups * k^2 in the order of its weights.
    """
    columns = (
        given.reshape(1, -1, given.shape[-1]) if isinstance(layer, nn.Linear) else _patches(layer, given)
    )
    if layer.bias is None:
        return columns
    return torch.cat([columns, columns.new_ones(*columns.shape[:2], 1)], 2)


def _patches(layer: nn.Conv2d, given: Tensor) -> Tensor:
    padding = layer.padding
    if isinstance(layer, Conv2dSame):
        given = pad_same(given, list(layer.kernel_size), list(layer.stride), list(layer.dilation))
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        raise ValueError(f"a convolution that pads as {padding}, {layer.padding_mode} has no patches")
    columns = F.unfold(given, layer.kernel_size, layer.dilation, padding, layer.stride)
    count, _, places = columns.shape
    return columns.reshape(count, layer.groups, -1, places).permute(1, 0, 3, 2).flatten(1, 2)


def covariances(network: Network, crops: Crops, features: Rows) -> Covariances:
    """Return the covariance of each layer's inputs over crops, each a pool of its own, in evaluation mode.

    crops: uint8 [T, S, S, 3]; features: their raw forensic features, float32 [T, F].
    """
    network.eval()
    device = next(network.parameters()).device
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def add(name: str, layer: nn.Linear | nn.Conv2d, given: tuple[Tensor, ...]) -> None:
        seen = inputs(layer, given[0])
        sums[name] = sums.get(name, 0) + (seen.mT @ seen).double()
        counts[name] = counts.get(name, 0) + seen.shape[1]

    with torch.no_grad(), ExitStack() as hooks:
        for name, layer in layers(network).items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(add, name)))
        for start in range(0, len(crops), _CROPS_AT_ONCE):
            rows = slice(start, start + _CROPS_AT_ONCE)
            images, own = as_images(crops[rows], device), torch.from_numpy(features[rows]).to(device)
            network.classify(network.backbone(network.front(images)), own)
    return {name: ((sums[name] / counts[name]).float(), float(counts[name])) for name in sums}


def merge_covariances(before: Covariances, now: Covariances) -> Covariances:
    """Return the covariances over the inputs of both."""
    both = before | now
    for name in before.keys() & now.keys():
        (mean, count), (other, more) = before[name], now[name]
        both[name] = ((mean.to(other) * count + other * more) / (count + more), count + more)
    return both


def projection(covariance: Tensor, ratio: float = SINGULAR_RATIO) -> Tensor:
    """Return U U^T onto the approximate null space, of the same shape as the covariance, [groups, d, d]."""
    values, vectors = torch.linalg.eigh(covariance.double())
    smallest = torch.maximum(values[:, :1], _ROUNDING * values[:, -1:])
    null = vectors * (values <= ratio * smallest)[:, None, :]
    onto: Tensor = (null @ null.mT).to(covariance.dtype)
    return onto


def projected_update(
    network: Network, optimiser: torch.optim.Optimizer, projections: Mapping[str, Tensor]
) -> None:
    """Let the optimiser step, decay included, and keep the part of each layer's step in its null space."""
    named = layers(network)
    chosen = [named[name] for name in projections]
    before = [[value.detach().clone() for value in layer.parameters()] for layer in chosen]
    optimiser.step()
    with torch.no_grad():
        for layer, old, onto in zip(chosen, before, projections.values(), strict=True):
            moved = [value - was for value, was in zip(layer.parameters(), old, strict=True)]
            for value, was, step in zip(layer.parameters(), old, _project(moved, onto), strict=True):
                value.copy_(was + step)


def _project(step: list[Tensor], onto: Tensor) -> list[Tensor]:
    """step: a layer's weight [out, ...] and, where it has one, its bias [out]; onto: [groups, d, d]."""
    weight, groups = step[0], len(onto)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    if len(step) == 1:
        return [(rows @ onto).reshape(weight.shape)]
    joint = torch.cat([rows, step[1].reshape(groups, -1, 1)], 2) @ onto
    return [joint[..., :-1].reshape(weight.shape), joint[..., -1].reshape(-1)]


def fix_normalisation(network: Network) -> None:
    """Let the backbone normalise as in evaluation mode, whatever its mode, with nothing to be trained."""
    network.backbone = freeze_batch_norm_2d(network.backbone)  # type: ignore[no-untyped-call]


def release_normalisation(network: Network) -> None:
    """Undo `fix_normalisation`; nothing has changed meanwhile."""
    network.backbone = unfreeze_batch_norm_2d(network.backbone)  # type: ignore[no-untyped-call]
