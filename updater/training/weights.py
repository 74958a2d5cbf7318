"""Weights that the first network of a stream begins with: one's own from a file, or timm's.

Those of the same timm model for other images, of another size or of fewer channels, are made to fit.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from detector.model.backbone import NoBackbone, check_name, size_option
from detector.model.network import Network
from detector.release.manifest import NO_BACKBONE

_RGB = 3


def fit_state(name: str, side_px: int, backbone: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state as `backbone` needs it, which is timm's model `name` for images of this size.

    state: as timm or the model's authors publish it. timm's own loader translates foreign names and resizes
    position embeddings and patch filters. The classifier is left out. Filters of RGB read the last three of
    the backbone's channels, and its others count for nothing at first: so it begins by saying of a picture
    what the weights say of it. A state that does not fit is returned as far as this goes.
    """
    described: Any = backbone.pretrained_cfg
    own = backbone.state_dict()
    classifiers = tuple(f"{layer}." for layer in _names(described.get("classifier")))
    kept = {k: v for k, v in state.items() if k in own or not k.startswith(classifiers or ("\0",))}
    first = [f"{layer}.weight" for layer in _names(described.get("first_conv"))]
    channels = next((kept[key].shape[1] for key in first if key in kept and kept[key].ndim == 4), _RGB)
    loaded = _load_state(name, side_px, channels, described, kept)
    if loaded is None:
        kept |= _positions(kept, own)
        loaded = _load_state(name, side_px, channels, described, kept) or kept
    for key in first:
        if key in loaded and key in own and loaded[key].shape[1:2] == (_RGB,) != own[key].shape[1:2]:
            wide = own[key].new_zeros(own[key].shape)
            wide[:, -_RGB:] = loaded[key]
            loaded[key] = wide
    return loaded


def _load_state(
    name: str, side_px: int, channels: int, described: Mapping[str, Any], state: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Return a state as timm's loader converts it for images of so many channels; None where it does not fit.

    A loader that was made for one layout may fail in any way on another.
    """
    import timm  # as slow to load as in `make_backbone`

    overlay = {
        "state_dict": dict(state),
        "input_size": (channels, *described["input_size"][1:]),
        # Or it would take any missing tensor for a part of the classifier that was left out.
        "num_classes": 0,
        "label_offset": 0,
    }
    try:
        model = timm.create_model(
            name,
            pretrained=True,
            pretrained_cfg_overlay=overlay,
            in_chans=channels,
            num_classes=0,
            **size_option(name, side_px),
        )
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    fitted: dict[str, Tensor] = model.state_dict()
    return fitted


def _positions(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the position embeddings of a state for the model's own grid, where timm's loader resizes none.

    ConViT's are [1, tokens, D], on a square grid, and VOLO's [1, rows, columns, D].
    """
    from timm.layers.pos_embed import resample_abs_pos_embed, resample_abs_pos_embed_nhwc

    name = "pos_embed"
    if name not in state or name not in own or state[name].shape == own[name].shape:
        return {}
    values, wanted = state[name], own[name].shape
    if values.ndim == 4:
        return {name: resample_abs_pos_embed_nhwc(values, list(wanted[1:3]))}
    old, new = (math.isqrt(count) for count in (values.shape[1], wanted[1]))
    if (old**2, new**2) != (values.shape[1], wanted[1]):
        return {}
    return {name: resample_abs_pos_embed(values, [new, new], [old, old], num_prefix_tokens=0)}


def _names(names: str | Iterable[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


_PARTS = ("backbone.", "project.", "branch.", "pseudo_head.")
"""what names in a whole network begin with, and names in a backbone of timm's do not"""
HEADS = ("head.", "pseudo_head.")
_LEARNT_FORMAT = "learnt-"
"""what the format of a benchmark's network begins with (`updater.benchmark.learners.task_tokens`)"""
_LEARNT, _KEPT = "network.", "kept."
_WITHOUT_HEAD = "take head.* and pseudo_head.* out of the file, or begin without it"


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
    licence: str | None = None
    """that they may be used under, where it is known"""

    @property
    def description(self) -> str:
        """One line for a person: author, name and licence."""
        name = self.origin.rpartition("/")[2]  # where a file lies on one machine is no other's concern
        return f"{name} (SHA-256 {self.digest[:12]}, licence {self.licence or 'not stated'})"

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
        return any(name.startswith(_PARTS) for name in self.tensors)


def read_weights(path: Path) -> Weights:
    """Read a safetensors file: a backbone's state, a release's weights, or a benchmark's network.

    Its metadata may name the classes, as a JSON list, and the weights' license.
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
    # By its format and not by its names: timm's VOLO has names of its own that begin so.
    if metadata.get("format", "").startswith(_LEARNT_FORMAT):
        own = {name: value for name, value in tensors.items() if not name.startswith(_KEPT)}
        tensors = {name.removeprefix(_LEARNT): value for name, value in own.items()}
    if not tensors:
        raise WeightsError(f"{path} holds no tensor")
    for name, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise WeightsError(f"{path} has numbers in {name} that are none or infinite: take other weights")
    try:
        classes = tuple(map(str, json.loads(metadata["classes"]))) if "classes" in metadata else None
    except (ValueError, TypeError) as error:
        text = metadata["classes"][:40]
        raise WeightsError(f"{path} names as its classes {text!r}, which is no JSON list: mend it") from error
    return Weights(str(path), tensors, classes, metadata.get("license"))


def timm_weights(name: str) -> Weights:
    """Fetch timm's weights of a model from its hub, or from the cache of that, as they were learnt.

    Raises WeightsError where there are none or the hub cannot be reached, and BackboneError for a name that
    timm does not know.
    """
    if name == NO_BACKBONE:
        raise WeightsError("timm has no weights for a network without a backbone: name one")
    import timm  # as slow to load as in `make_backbone`

    check_name(name)
    try:
        backbone = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError, httpx.HTTPError) as error:
        why = " ".join(str(error).split())[:200]
        raise WeightsError(f"timm's weights of {name} cannot be had ({why}): begin without them") from error
    described: Any = backbone.pretrained_cfg
    return Weights(f"timm's {name}", backbone.state_dict(), licence=described.get("license"))


def choose_weights(backbone: str, checkpoint: Path | None, pretrained: bool) -> Weights | None:
    """Return the weights of a file, or timm's of a backbone; None where neither is asked for.

    Raises WeightsError and BackboneError.
    """
    if checkpoint:
        return read_weights(checkpoint)
    return timm_weights(backbone) if pretrained else None


def put(network: Network, weights: Weights, classes: tuple[str, ...]) -> None:
    """Give a network these weights; parts of a head that they lack stay as they are.

    classes: of the network. A head goes on with its own classes alone. Raises WeightsError where a name or
    a shape does not fit.
    """
    state = dict(weights.tensors)
    if not weights.whole:
        backbone = getattr(network.backbone, "whole", network.backbone)
        cut: tuple[str, ...] = getattr(network.backbone, "cut", ())
        kept = {name: value for name, value in state.items() if not name.startswith(cut)}
        made_for = network.architecture
        put_backbone(backbone, made_for.backbone, made_for.crop_px, replace(weights, tensors=kept))
        return
    head = state.get("head.weight")
    if weights.classes not in (None, classes):
        raise WeightsError(
            f"{weights.origin} tells apart {_list_classes(weights.classes or ())}, and the first task has"
            f" {_list_classes(classes)}: {_WITHOUT_HEAD}"
        )
    own = network.head.weight.shape[0]
    if head is not None and len(head) != own:
        raise WeightsError(
            f"{weights.origin} has a head of {len(head)} logits, and the first task has {own}:"
            f" {_WITHOUT_HEAD}"
        )
    fill(network, state, weights, HEADS)


def put_backbone(backbone: nn.Module, name: str, side_px: int, weights: Weights) -> None:
    """Give timm's model `name` for images of this size these weights. Raises WeightsError."""
    if isinstance(backbone, NoBackbone):
        raise WeightsError(
            f"{weights.origin} is of a backbone, and the network has none: name the model that it is of"
        )
    fill(backbone, fit_state(name, side_px, backbone, weights.tensors), weights, ())


def fill(module: nn.Module, state: dict[str, Tensor], weights: Weights, optional: tuple[str, ...]) -> None:
    """Raise WeightsError where a name or a shape does not fit; names that begin as `optional` may lack."""
    own = module.state_dict()
    lacking = [k for k in own if k not in state and not k.startswith(optional or ("\0",))]
    differ = [k for k, v in state.items() if k in own and v.shape != own[k].shape]
    wrong = [f"{k} is {_shape(state[k])}, not {_shape(own[k])}" for k in differ]
    problems = [*(f"it lacks {k}" for k in lacking), *(f"it has {k}" for k in state if k not in own), *wrong]
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise WeightsError(
            f"{weights.origin} does not fit the network: {problems[0]}{more}; name the model that it is of"
        )
    module.load_state_dict(own | state)


def _shape(value: Tensor) -> str:
    return "x".join(str(side) for side in value.shape) or "one number"


def _list_classes(classes: tuple[str, ...]) -> str:
    return ", ".join(classes)
