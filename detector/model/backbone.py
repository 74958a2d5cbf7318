"""Timm's models as backbones: made for a size of picture, with timm's input normalisation."""

from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from detector.release.manifest import NO_BACKBONE, Architecture, Channels

_LEVELS = 255.0


class BackboneError(ValueError):
    """A backbone cannot be made. Fatal: name another. One line: which, and why not."""


class NoBackbone(nn.Module):
    """float32 [N, C, S, S] → float32 [N, 0]: the network reads forensic features alone."""

    def forward(self, images: Tensor) -> Tensor:
        """Return a row without columns for each image."""
        return images.new_zeros((len(images), 0))


def make_backbone(name: str, channels: int, side_px: int) -> tuple[nn.Module, int]:
    """Return timm's model of that name without a head, and the width of its features; none for "none".

    Its weights are those that training from scratch begins with. A vision transformer, which is made for one
    size of image, is made for this one. Raises BackboneError for a name that timm does not know, and where
    the model takes no images of this size.
    """
    if name == NO_BACKBONE:
        return NoBackbone(), 0
    import timm  # it takes seconds, and most processes have no backbone

    check_name(name)
    try:
        backbone: nn.Module = timm.create_model(
            name, pretrained=False, in_chans=channels, num_classes=0, **size_option(name, side_px)
        )
        backbone.eval()
        with torch.no_grad():
            width = int(backbone(torch.zeros(1, channels, side_px, side_px)).shape[1])
    # Each of timm's thousand models has its own way to say that it cannot be made of this size.
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        problem = f"{name} cannot be made for images of {side_px} px ({why}): name another model"
        raise BackboneError(problem) from error
    return backbone.train(), width


def size_option(name: str, side_px: int) -> dict[str, Any]:
    """Return the option of timm's `create_model` for the images' size; empty where any size will do."""
    import timm

    described = timm.get_pretrained_cfg(name)
    fixed = described is not None and described.fixed_input_size
    return {"img_size": side_px} if fixed else {}


def check_name(name: str) -> None:
    """Raise BackboneError unless timm knows a model of that name. Nothing is looked up in its hub."""
    import timm

    # Names that lead to a hub are no names of models: they would be looked up there.
    model, _, tag = name.partition(".")
    if not timm.is_model(model):
        near = " or ".join(get_close_matches(model, timm.list_models(), 3)) or "see its list"
        raise BackboneError(f"{name} is no model that timm knows: {near}, or {NO_BACKBONE}")
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        known = " or ".join(timm.list_pretrained(f"{model}.*")) or "it has none"
        raise BackboneError(f"timm knows no weights {tag} of {model}: {known}") from error


class PretrainedInput(NamedTuple):
    """A model's input while its weights were learnt, as timm's own data configuration names it."""

    mean: Channels
    """levels of 0..255 that it is shown as 0"""
    deviation: Channels
    """levels that it is shown as 1"""
    interpolation: str


def shown_to(name: str) -> PretrainedInput:
    """Return timm's input configuration of a model. Raises BackboneError for a name that it does not know."""
    import timm
    from timm.models import PretrainedCfg

    check_name(name)
    configured = timm.get_pretrained_cfg(name) or PretrainedCfg()
    mean, deviation = (
        (_LEVELS * red, _LEVELS * green, _LEVELS * blue)
        for red, green, blue in (configured.mean, configured.std)
    )
    return PretrainedInput(mean, deviation, configured.interpolation)


def architecture_of(backbone: str, **fields: Any) -> Architecture:
    """Return the architecture of a new network on a backbone: pixels are normalised as timm names for it.

    Raises BackboneError for a name that timm does not know, and pydantic's ValidationError for other fields.
    """
    if backbone != NO_BACKBONE:
        example = shown_to(backbone)
        fields |= {"mean": example.mean, "deviation": example.deviation}
    return Architecture.model_validate({"backbone": backbone} | fields)
