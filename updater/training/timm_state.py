"""A timm model's weights made to fit the same model for other images: another size, more channels."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from detector.model.backbone import size_option

_RGB = 3


def fitted(name: str, side_px: int, backbone: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state as `backbone` needs it, which is timm's model `name` for images of this size.

    state: as timm or the model's authors publish it. timm's own loader translates foreign names and resizes
    position embeddings and patch filters. The classifier is left out. Filters of RGB read the last three of
    the backbone's channels, and its others count for nothing at first: so it begins by saying of a picture
    what the weights say of it. A state that does not fit is returned as far as this goes.
    """
    described: Any = backbone.pretrained_cfg
    own = backbone.state_dict()
    classifiers = tuple(f"{one}." for one in _each(described.get("classifier")))
    kept = {k: v for k, v in state.items() if k in own or not k.startswith(classifiers or ("\0",))}
    first = [f"{one}.weight" for one in _each(described.get("first_conv"))]
    channels = next((kept[one].shape[1] for one in first if one in kept and kept[one].ndim == 4), _RGB)
    loaded = _loaded(name, side_px, channels, described, kept)
    if loaded is None:
        kept |= _positions(kept, own)
        loaded = _loaded(name, side_px, channels, described, kept) or kept
    for one in first:
        if one in loaded and one in own and loaded[one].shape[1:2] == (_RGB,) != own[one].shape[1:2]:
            wide = own[one].new_zeros(own[one].shape)
            wide[:, -_RGB:] = loaded[one]
            loaded[one] = wide
    return loaded


def _loaded(
    name: str, side_px: int, channels: int, described: Mapping[str, Any], state: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Return what timm's loader makes of a state for images of so many channels; None where it does not fit.

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
    found: dict[str, Tensor] = model.state_dict()
    return found


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


def _each(names: str | Iterable[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())
