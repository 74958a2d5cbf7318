"""Weights that the first network of a stream begins with: one's own from a file, or timm's."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from detector.architecture import Architecture
from detector.network import Network, NoBackbone, PlainFrontEnd, ResidualFrontEnd, make_backbone

_PARTS = ("backbone.", "project.", "branch.", "pseudo_head.")
"""what names in a whole network begin with, and names in a backbone of timm's do not"""
_HEADS = ("head.", "pseudo_head.")
_LEARNT, _KEPT = "network.", "kept."


class WeightsError(ValueError):
    """Weights cannot be read, or do not fit the network. Fatal. One line: which, and why not."""


@dataclass(frozen=True)
class Weights:
    """Tensors by name: of a backbone, as timm names them, or of a whole `Network`, maybe headless."""

    origin: str
    """what a person calls them"""
    tensors: Mapping[str, Tensor]
    classes: tuple[str, ...] | None = None
    """of a whole network whose file says them"""

    @property
    def digest(self) -> str:
        """SHA-256 over every tensor, hexadecimal."""
        total = hashlib.sha256()
        for name, value in sorted(self.tensors.items()):
            total.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
            total.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()

    @property
    def whole(self) -> bool:
        """Whether they are those of a whole network."""
        return any(name.startswith(_PARTS) for name in self.tensors)

    def without_head(self) -> "Weights":
        """Return what is below the head, which any other classes can begin with."""
        if not self.whole:
            return self
        below = {name: value for name, value in self.tensors.items() if not name.startswith(_HEADS)}
        return replace(self, tensors=below, classes=None)


def read_weights(path: Path) -> Weights:
    """Read a safetensors file: a backbone's state, a release's weights, or a benchmark's network.

    Raises WeightsError.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error})") from error
    except SafetensorError as error:
        raise WeightsError(f"{path} is no safetensors file ({error})") from error
    if any(name.startswith(_LEARNT) for name in tensors):
        own = {name: value for name, value in tensors.items() if not name.startswith(_KEPT)}
        tensors = {name.removeprefix(_LEARNT): value for name, value in own.items()}
    if not tensors:
        raise WeightsError(f"{path} holds no tensor")
    classes = tuple(json.loads(metadata["classes"])) if "classes" in metadata else None
    return Weights(str(path), tensors, classes)


def timm_weights(architecture: Architecture) -> Weights:
    """Fetch timm's weights of an architecture's backbone from its hub, or from the cache of that.

    Raises WeightsError where there are none or the hub cannot be reached.
    """
    front = ResidualFrontEnd() if architecture.forensic else PlainFrontEnd()
    name = architecture.backbone
    try:
        backbone = make_backbone(name, front.channels, architecture.crop_px, pretrained=True)
    except (OSError, RuntimeError, httpx.HTTPError) as error:
        why = " ".join(str(error).split())[:200]
        raise WeightsError(f"timm's weights of {name} cannot be had ({why}): begin without them") from error
    if isinstance(backbone, NoBackbone):
        raise WeightsError("timm has no weights for a network without a backbone: name one")
    return Weights(f"timm's {name}", backbone.state_dict())


def put(network: Network, weights: Weights, classes: tuple[str, ...]) -> None:
    """Give a network these weights; what they do not hold of a head stays as it is.

    classes: of the network. A head goes on with its own classes alone. Raises WeightsError where a name or
    a shape does not fit.
    """
    state = dict(weights.tensors)
    if not weights.whole:
        backbone = getattr(network.backbone, "whole", network.backbone)
        _load(backbone, _of_backbone(backbone, state, weights), weights, ())
        return
    head = state.get("head.weight")
    if weights.classes not in (None, classes):
        raise WeightsError(
            f"{weights.origin} tells apart {_named(weights.classes or ())}, and the first task has"
            f" {_named(classes)}: leave its head out, or begin without it"
        )
    own = network.head.weight.shape[0]
    if head is not None and len(head) != own:
        raise WeightsError(
            f"{weights.origin} has a head of {len(head)} logits, and the first task has {own}:"
            " leave its head out, or begin without it"
        )
    _load(network, state, weights, _HEADS)


def _of_backbone(backbone: nn.Module, state: dict[str, Tensor], weights: Weights) -> dict[str, Tensor]:
    """Return the state without timm's classifier, and its first filters spread over as many channels."""
    if isinstance(backbone, NoBackbone):
        raise WeightsError(f"{weights.origin} is of a backbone, and the network has none")
    from timm.models import adapt_input_conv  # as slow to load as in `make_backbone`

    described: Any = backbone.pretrained_cfg
    classifiers = tuple(f"{name}." for name in _each(described.get("classifier")))
    own = backbone.state_dict()
    kept = {k: v for k, v in state.items() if k in own or not k.startswith(classifiers)}
    for name in (f"{first}.weight" for first in _each(described.get("first_conv"))):
        value = kept.get(name)
        if value is not None and name in own and value.ndim == 4 and value.shape[1] == 3:
            kept[name] = adapt_input_conv(own[name].shape[1], value)
    return kept


def _each(names: str | Iterable[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _load(module: nn.Module, state: dict[str, Tensor], weights: Weights, optional: tuple[str, ...]) -> None:
    own = module.state_dict()
    lacking = [k for k in own if k not in state and not k.startswith(optional or ("\0",))]
    wrong = [
        f"{k} is {_shape(v)}, not {_shape(own[k])}"
        for k, v in state.items()
        if k in own and v.shape != own[k].shape
    ]
    problems = [
        *(f"it lacks {k}" for k in lacking),
        *(f"it has {k}" for k in state if k not in own),
        *wrong,
    ]
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise WeightsError(f"{weights.origin} does not fit the network: {problems[0]}{more}")
    module.load_state_dict(own | state)


def _shape(value: Tensor) -> str:
    return "x".join(str(side) for side in value.shape) or "one number"


def _named(classes: tuple[str, ...]) -> str:
    return ", ".join(classes)
