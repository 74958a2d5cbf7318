"""The null space of what a layer was given before: updates inside it leave the layer's old outputs alone.

Wang et al. 2021, "Training networks in null space of feature covariance for continual learning". Per layer,
C = X^T X / n is the uncentred covariance of its n inputs X over all earlier steps; that of two sets is their
mean weighted by n, so that C and n alone are kept. The eigenvectors U of C whose eigenvalues (C's singular
values) are at most a times the smallest span its approximate null space. The step D that Adam would make
becomes D U U^T. Over the old inputs x the mean of |D U U^T x|^2 is then at most a * smallest * |D|^2.

Layers are `nn.Linear` and plain convolutions, which are linear layers over unfolded patches. A grouped
convolution is one linear layer a group with a covariance each; for a depthwise one these are k^2 by k^2, one
a channel. Where a layer has a bias, 1 is appended to its inputs, so that the bias moves with the weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.padding import pad_same
from torch import Tensor, nn

from detector.model.network import Network
from updater.training.crop_rows import Crops, Rows, as_images

SINGULAR_RATIO = 10.0
"""a, as in the published code"""
_ROUNDING = 1e-6
"""eigenvalues below this share of the largest are zero, as far as float32 inputs can tell"""
_CROPS_AT_ONCE = 16

Covariances = dict[str, tuple[Tensor, float]]
"""by layer: the mean of x x^T, float32 [groups, d, d], and over how many inputs"""


def layers(network: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """Return the layers whose updates can be projected, by name; those that change their weights are not."""
    return {
        name: module
        for name, module in network.named_modules()
        if type(module) in (nn.Linear, nn.Conv2d, Conv2dSame) and isinstance(module, nn.Linear | nn.Conv2d)
    }


def inputs(layer: nn.Linear | nn.Conv2d, given: Tensor) -> Tensor:
    """Return what a layer multiplies its weights with, float32 [groups, n, d].

    given: [..., d] for a linear layer, [N, C, H, W] for a convolution, where n is N times the places of its
    output and d is C / groups * k^2 in the order of its weights.
    """
    if isinstance(layer, nn.Linear):
        columns = given.reshape(1, -1, given.shape[-1])
    else:
        columns = _patches(layer, given)
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
    with torch.no_grad(), _watched(network, sums, counts):
        for start in range(0, len(crops), _CROPS_AT_ONCE):
            rows = slice(start, start + _CROPS_AT_ONCE)
            images, own = as_images(crops[rows], device), torch.as_tensor(features[rows]).to(device)
            network.classify(network.backbone(network.front(images)), own)
    return {name: ((sums[name] / counts[name]).float(), float(counts[name])) for name in sums}


@contextmanager
def _watched(network: Network, sums: dict[str, Tensor], counts: dict[str, int]) -> Iterator[None]:
    def watch(name: str, layer: nn.Linear | nn.Conv2d) -> torch.utils.hooks.RemovableHandle:
        def add(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen = inputs(layer, given[0])
            sums[name] = sums.get(name, 0) + (seen.mT @ seen).double()
            counts[name] = counts.get(name, 0) + seen.shape[1]

        return layer.register_forward_pre_hook(add)

    handles = [watch(name, layer) for name, layer in layers(network).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def merged(before: Covariances, now: Covariances) -> Covariances:
    """Return the covariances over the inputs of both."""
    both = dict(now)
    for name, (mean, count) in before.items():
        if name in now:
            other, more = now[name]
            both[name] = ((mean.to(other) * count + other * more) / (count + more), count + more)
        else:
            both[name] = (mean, count)
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
    """Let the optimiser step, decay included, and keep of each layer's step what lies in its null space."""
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
