"""What a gate decides items by, of a network that is not exported yet: scores, and logits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.network import Network
from detector.model.scores import NetworkOutput, fit_scores
from detector.release.artifact import Reference
from updater.data.training_data import LabelledCrops
from updater.experts.calibrate import ExpertsSay
from updater.progress import Progress, no_progress
from updater.training.crop_rows import Rows, backbone_rows, classify_items, crop_features, item_features

_ITEMS_AT_ONCE = 2048


@dataclass(frozen=True)
class GateInputs:
    """What a gate decides n whole items by."""

    scores: dict[str, NDArray[np.float32]]
    """[n] each, by the names of detector/model/scores.py; higher means less familiar"""
    fake_probability: NDArray[np.float32]
    """[n], by the logits alone"""
    logits: NDArray[np.float32]
    """[n, K]"""
    expert_weights: Mapping[str, float] = field(default_factory=dict)
    """of the terms of those scores that are experts'"""

    def take(self, some: slice) -> "GateInputs":
        """Return those of some of the items."""
        return GateInputs(
            {name: values[some] for name, values in self.scores.items()},
            self.fake_probability[some],
            self.logits[some],
            self.expert_weights,
        )


def score(
    network: Network,
    reference: Reference | None,
    items: LabelledCrops,
    device: torch.device,
    progress: Progress = no_progress,
    experts: ExpertsSay | None = None,
) -> GateInputs:
    """Score whole items with a network that is not exported yet, beside its experts."""
    output = output_of(network, items, device, "calibration", progress)
    return gate_inputs(output, reference, experts, frozen=network.architecture.frozen)


def output_of(
    network: Network,
    items: LabelledCrops,
    device: torch.device,
    stage: str,
    progress: Progress,
) -> NetworkOutput:
    """Return what the network says of each whole item, on the CPU.

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


def gate_inputs(
    output: NetworkOutput,
    reference: Reference | None,
    experts: ExpertsSay | None = None,
    *,
    frozen: bool = False,
) -> GateInputs:
    """Score what a network says of n whole items, by every score that this reference set allows.

    experts: what they say of the items: scores of their own, and a vote. frozen: whether it is a network of
    frozen features, which has learnt no class of pseudo-forgeries.
    """
    output = NetworkOutput(*(one.cpu() for one in output))
    logits = output.logits if experts is None else output.logits + experts.vote
    return GateInputs(
        scores={
            name: np.concatenate([score(part).numpy() for part in _in_parts(output)])
            for name, score in fit_scores(reference).items()
            if not (frozen and name == "pseudo")
        }
        | ({} if experts is None else experts.scores(output.logits)),
        fake_probability=(1 - torch.softmax(logits, dim=-1)[:, 0]).numpy(),
        logits=logits.numpy(),
        expert_weights={} if experts is None else experts.weights,
    )


def _in_parts(output: NetworkOutput) -> list[NetworkOutput]:
    """Split what is said of n items: all their distances to the reference set would fill the memory."""
    return [
        NetworkOutput(*part)
        for part in zip(*(torch.split(one, _ITEMS_AT_ONCE) for one in output), strict=True)
    ]
