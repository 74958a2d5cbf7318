"""A post-hoc score's input, its fit set and its value: higher means less familiar."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from detector.model.network import CosineHead, Network
from detector.model.scores import NetworkOutput


class EvidenceError(ValueError):
    """Evidence that is too little to fit on, or lacks a score's input. Fatal."""


@dataclass(frozen=True)
class Evidence:
    """One network's output for n whole items, float32.

    logits: [n, K], the known classes alone. embedding: [n, D], what the head reads, before dropout. features:
    [n, F], raw pooled forensic features; F is 0 where the network has none. pseudo_logit: [n], the class of
    forgeries of no known family.
    """

    logits: NDArray[np.float32]
    embedding: NDArray[np.float32]
    features: NDArray[np.float32]
    pseudo_logit: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.logits)

    def output(self) -> NetworkOutput:
        """Return the same as the network's own record, float32 tensors on the CPU."""
        parts = (self.logits, self.pseudo_logit, self.embedding, self.features)
        return NetworkOutput(*(torch.tensor(part) for part in parts))


@dataclass(frozen=True)
class FitSet:
    """The items that a score is fitted on: n training items of the known classes.

    The head is linear: logits = embedding @ head_weight.T + head_bias. For a cosine head, that is so of
    normalised embeddings and scaled normalised weights, which is what `evidence_of` and `known_of` give.

    targets: [n], the column of each item's class. head_weight: [K, D]. head_bias: [K]. calibration: known
    items that neither the network nor the training evidence holds; only `fused` reads them, and their
    targets. names: of the classes, by column, which say what is real; () where that is not known. versions:
    the training items again, their crops changed as AugMix changes them; only its head reads them.
    """

    evidence: Evidence
    targets: NDArray[np.int64]
    head_weight: NDArray[np.float32]
    head_bias: NDArray[np.float32]
    calibration: Evidence | None = None
    calibration_targets: NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()
    versions: tuple[Evidence, ...] = ()

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings, float32 [n, D], and the targets, int64 [n]."""
        return torch.tensor(self.evidence.embedding), torch.tensor(self.targets)

    def head(self, embedding: Tensor) -> Tensor:
        """Return the logits [m, K] of embeddings [m, D], in their dtype."""
        weight, bias = torch.tensor(self.head_weight), torch.tensor(self.head_bias)
        return F.linear(embedding, weight.to(embedding.dtype), bias.to(embedding.dtype))


Score = Callable[[Evidence], NDArray[np.float64]]
"""The scores [n] of n items, higher for less familiar ones."""

Fit = Callable[[FitSet], Score]
"""Raises EvidenceError where there is too little to fit on."""


def evidence_of(network: Network, output: NetworkOutput) -> Evidence:
    """Return the evidence in a network's output for n items."""
    cosine = isinstance(network.head, CosineHead)
    embedding = F.normalize(output.embedding, dim=1) if cosine else output.embedding
    return Evidence(
        logits=_float32(output.logits),
        embedding=_float32(embedding),
        features=_float32(output.features),
        pseudo_logit=_float32(output.pseudo_logit),
    )


def known_of(network: Network, evidence: Evidence, targets: NDArray[np.int64], **more: Any) -> FitSet:
    """Return the fit set of scores, with this network's head. more: the other fields of `FitSet`."""
    head = network.head
    weight = head.scale * F.normalize(head.weight, dim=1) if isinstance(head, CosineHead) else head.weight
    bias = torch.zeros(len(weight)) if isinstance(head, CosineHead) else head.bias
    return FitSet(evidence, targets, _float32(weight), _float32(bias), **more)


def as_score(formula: Callable[[Evidence], ArrayLike]) -> Score:
    """Return the formula as a score, in float64."""
    return lambda evidence: np.asarray(formula(evidence), np.float64)


def float64(values: NDArray[np.float32]) -> Tensor:
    """Return a copy of an array as a tensor: in float32 the scores of confident items tie at 1e-7."""
    return torch.tensor(values, dtype=torch.float64)


def _float32(values: Tensor) -> NDArray[np.float32]:
    return np.asarray(values.detach().float().cpu().numpy(), np.float32)
