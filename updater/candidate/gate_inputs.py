"""A gate's inputs, of a network that is not exported yet: scores, and logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.model.network import SCALED_CLIP, Network
from detector.model.scores import NetworkOutput, Score, fit_scores
from detector.release.artifact import Reference
from updater.data.training_data import LabelledCrops
from updater.experts.calibrate import ExpertsSay
from updater.progress import Progress
from updater.training.crop_rows import Rows, backbone_rows, classify_items, crop_features, item_features
from updater.training.discriminant import Discriminants, rows_of
from updater.training.schemes import fake_probability
from updater.training.sums import on_grid

_ITEMS_AT_ONCE = 2048


@dataclass(frozen=True)
class Part:
    """n items, and the network's output for them."""

    items: LabelledCrops
    output: NetworkOutput
    rows: NDArray[np.float64]
    """what a head reads, [n, D], on the grid"""

    def take(self, chosen: NDArray[np.bool_] | Sequence[int]) -> "Part":
        """Return these items, bool [n] or their places."""
        at = np.arange(len(self.items))[chosen]
        output = NetworkOutput(*(tensor[torch.from_numpy(at)] for tensor in self.output))
        return Part(self.items.take(at), output, self.rows[at])

    @staticmethod
    def join(parts: Sequence["Part"]) -> "Part":
        """Return the items of all parts, at least one, in order."""
        output = NetworkOutput(*(torch.cat(of) for of in zip(*(part.output for part in parts), strict=True)))
        items = LabelledCrops.join([part.items for part in parts])
        return Part(items, output, np.concatenate([part.rows for part in parts]))

    def solve(self, discriminants: Discriminants) -> "Part":
        """Return the items with the logits of other discriminants."""
        logits = self.rows @ discriminants.weight.T + discriminants.bias
        output = self.output._replace(logits=torch.from_numpy(logits).float())
        return Part(self.items, output, self.rows)


def part_of(
    network: Network, items: LabelledCrops, device: torch.device, stage: str, progress: Progress
) -> Part:
    """Return items with a network's output for them."""
    output = output_of(network, items, device, stage, progress)
    if network.architecture.frozen:
        return Part(items, output, rows_of(network, output.features.numpy()))
    return Part(items, output, on_grid(output.embedding.numpy().clip(-SCALED_CLIP, SCALED_CLIP)))


@dataclass(frozen=True)
class GateInputs:
    """A gate's inputs for n whole items."""

    scores: dict[str, NDArray[np.float32]]
    """[n] each, by the names of detector/model/scores.py; higher means less familiar"""
    fake_probability: NDArray[np.float32]
    """[n], by the logits alone"""
    logits: NDArray[np.float32]
    """[n, K]"""
    expert_weights: Mapping[str, float] = field(default_factory=dict)
    """of the terms of those scores that are experts'"""


def output_of(
    network: Network, items: LabelledCrops, device: torch.device, stage: str, progress: Progress
) -> NetworkOutput:
    """Return the network's output for each whole item, on the CPU.

    A network of frozen features reads the same features of an item that it was learnt from.
    """
    if network.architecture.frozen:
        features: Rows = item_features(network, items, device, partial(progress, stage))
        seen: Rows = np.zeros((len(items), 0), np.float32)
        starts = np.arange(len(items) + 1)
    else:
        features, starts = crop_features(network, items, device, partial(progress, stage)), items.starts
        seen = backbone_rows(network, items.crops, device, partial(progress, f"{stage}, backbone"))
    return NetworkOutput(*(item.cpu() for item in classify_items(network, seen, features, starts)))


def network_scores(reference: Reference | None, *, frozen: bool) -> dict[str, Score]:
    """Return every score that this reference set allows, by name.

    frozen: whether it is a network of frozen features, which has learnt no class of pseudo-forgeries.
    """
    return {name: of for name, of in fit_scores(reference).items() if not (frozen and name == "pseudo")}


def gate_inputs(
    output: NetworkOutput,
    scores: Mapping[str, Score],
    experts: ExpertsSay | None = None,
    fake: Tensor | None = None,
) -> GateInputs:
    """Score a network's output for n whole items.

    experts: what they say of the items: scores of their own, and a vote. fake: which logits stand for fakes,
    bool [K]; None: all but the first.
    """
    output = NetworkOutput(*(tensor.cpu() for tensor in output))
    logits = output.logits if experts is None else output.logits + experts.vote
    forged = 1 - torch.softmax(logits, dim=-1)[:, 0] if fake is None else fake_probability(logits, fake)
    return GateInputs(
        scores={
            name: np.concatenate([score(part).numpy() for part in _in_parts(output)])
            for name, score in scores.items()
        }
        | ({} if experts is None else experts.scores(output.logits)),
        fake_probability=forged.numpy(),
        logits=logits.numpy(),
        expert_weights={} if experts is None else experts.weights,
    )


def _in_parts(output: NetworkOutput) -> list[NetworkOutput]:
    """Split the output for n items: all their distances to the reference set would fill the memory."""
    parts = (torch.split(tensor, _ITEMS_AT_ONCE) for tensor in output)
    return [NetworkOutput(*part) for part in zip(*parts, strict=True)]
