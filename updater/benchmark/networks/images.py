"""Classifiers of pictures, by name: any model of timm's, two networks more, and three front ends before one.

- High-pass filters leave no scene: four of 5 × 5 on each colour, 12 channels, of Fridrich and Kodovský 2012,
  "Rich models for steganalysis of digital images", figure 1: the square of 5 × 5 and that of 3 × 3, and
  second differences along rows and along columns. The choice of the four is ours.
- Gram-Net is Liu, Qi and Torr 2020, "Global texture enhancement for fake face detection in the wild", section
  4: what channels do together, at several depths. A Gram block is a convolution to a few channels, the
  products of all pairs of them, and two convolutions on that matrix. As ForgeryNet has it, there is one
  before three of the stages.
- Error level analysis is Krawetz 2007, "A picture's worth"; quality and gain are ours: it gives none.
"""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.layers.conv_bn_act import ConvNormAct
from torch import Tensor, nn
from torch.nn import functional as F

from detector.model.backbone import check_name, make_backbone, size_option
from updater.benchmark.networks import backbones  # noqa: F401 - timm knows them from then on
from updater.benchmark.networks.clips import sequence
from updater.benchmark.networks.f3net import F3Net
from updater.benchmark.networks.names import (
    ELA,
    F3NET,
    GRAM,
    HIGHPASS,
    XCEPTION,
    NetworkError,
    check_image,
    parts_of,
)
from updater.filters import Picture
from updater.training.weights import choose_weights, put_backbone

_FILTERS = (
    ((-1, 2, -2, 2, -1), (2, -6, 8, -6, 2), (-2, 8, -12, 8, -2), (2, -6, 8, -6, 2), (-1, 2, -2, 2, -1)),
    ((0, 0, 0, 0, 0), (0, -1, 2, -1, 0), (0, 2, -4, 2, 0), (0, -1, 2, -1, 0), (0, 0, 0, 0, 0)),
    ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 1, -2, 1, 0), (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
    ((0, 0, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, -2, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 0, 0)),
)
CHANNELS = 3 * len(_FILTERS)
# Differences of neighbouring pixels are a few levels of 255.
_GAIN = 16.0


class HighPass(nn.Module):
    """float32 RGB [B, 3, S, S], 0..1 → float32 [B, 12, S, S]."""

    taps: Tensor

    def __init__(self) -> None:
        super().__init__()
        taps = torch.tensor(_FILTERS, dtype=torch.float32)
        taps = taps / taps.abs().amax((1, 2), keepdim=True)
        self.register_buffer("taps", taps.repeat(3, 1, 1)[:, None], persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the four residuals of each colour, in full precision: they drown in half of it."""
        with torch.autocast(pictures.device.type, enabled=False):
            around = F.pad(pictures.float(), (2, 2, 2, 2), mode="reflect")
            return _GAIN * F.conv2d(around, self.taps, groups=3)


def make_features(
    name: str, channels: int, px: int, weights: Path | None = None, *, pretrained: bool = False
) -> tuple[nn.Module, int]:
    """Return timm's model without a head, and the width of its features.

    name: of the model, or highpass:MODEL, which sees residuals of its pictures. weights: a file that it
    begins with; pretrained: timm's own, which are downloaded. Raises NetworkError, BackboneError for a name
    that timm does not know, and WeightsError.
    """
    front, _, model = name.rpartition(":")
    if front:
        if front != HIGHPASS:
            raise NetworkError(f"--model {name}: {front} is none: choose of {HIGHPASS}:BACKBONE, BACKBONE")
        features, width = make_features(model, CHANNELS, px, weights, pretrained=pretrained)
        return nn.Sequential(HighPass(), features), width
    backbone, width = make_backbone(name, channels, px)
    if (chosen := choose_weights(name, weights, pretrained)) is not None:
        put_backbone(backbone, name, px, chosen)
    return backbone, width


def make_levels(name: str, px: int, weights: Path | None = None, *, pretrained: bool = False) -> nn.Module:
    """Return timm's model with its feature maps at every depth as output, the last one last.

    weights, pretrained: as `make_features` has them. Raises NetworkError for a model that gives none,
    BackboneError and WeightsError.
    """
    import timm  # it takes seconds, and not every network needs it

    check_name(name)
    try:
        levels: nn.Module = timm.create_model(name, features_only=True, **size_option(name, px))
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:120]
        raise NetworkError(f"{name} gives no maps of features ({why}): name another model") from error
    begin_levels(levels, name, px, weights, pretrained=pretrained)
    return levels


def begin_levels(levels: nn.Module, name: str, px: int, weights: Path | None, *, pretrained: bool) -> None:
    """Give timm's model with its feature maps as output the weights that it has as a whole."""
    if weights is not None or pretrained:
        whole, _ = make_features(name, 3, px, weights, pretrained=pretrained)
        there = whole.state_dict()
        if lacking := sorted(levels.state_dict().keys() - there.keys()):
            raise NetworkError(f"{name} has no {lacking[0]} as a whole: begin at random")
        levels.load_state_dict({key: there[key] for key in levels.state_dict()})


GRAM_CHANNELS, WIDTH, BLOCKS = 16, 32, 3


class _GramBlock(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.align = ConvNormAct(inputs, GRAM_CHANNELS)
        self.texture = nn.Sequential(ConvNormAct(1, WIDTH, 3), ConvNormAct(WIDTH, WIDTH, 3))

    def forward(self, x: Tensor) -> Tensor:
        """float32 [B, C, H, W] → [B, WIDTH]."""
        own = self.align(x).flatten(2)
        gram = own @ own.transpose(1, 2) / own.shape[2]
        texture: Tensor = self.texture(gram[:, None])
        return texture.mean((2, 3))


class GramNet(nn.Module):
    """float32 RGB [B, 3, S, S], 0..1 → float32 logits [B, K]. features: timm's model, as `features_only`."""

    def __init__(self, features: nn.Module, classes: int) -> None:
        super().__init__()
        self.features = features
        info: Any = features.feature_info
        widths: list[int] = info.channels()
        self.blocks = nn.ModuleList([_GramBlock(width) for width in widths[:BLOCKS]])
        self.head = nn.Linear(widths[-1] + WIDTH * len(self.blocks), classes)

    def forward(self, pictures: Tensor) -> Tensor:
        levels = self.features(pictures)
        textures = [block(level) for block, level in zip(self.blocks, levels, strict=False)]
        logits: Tensor = self.head(torch.cat([levels[-1].mean((2, 3)), *textures], 1))
        return logits


JPEG_QUALITY, GAIN = 90, 15
_XCEPTION_PX, _PX = 299, 224


def published_px(name: str) -> int:
    """Return the side of the paper's input of a network: 299 of Xceptions, 224 of others."""
    return _XCEPTION_PX if name == F3NET or "xception" in parts_of(name)[1] else _PX


def front_of(name: str) -> Callable[[Picture], Picture]:
    """Return the front end of a network, from and to uint8 RGB [S, S, 3]."""
    return error_levels if parts_of(name)[0] == ELA else lambda picture: picture


def error_levels(picture: Picture) -> Picture:
    """Return the absolute difference of uint8 RGB [H, W, 3] to its JPEG, times 15 and clipped, uint8."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=JPEG_QUALITY)
    again = np.asarray(Image.open(buffer, formats=("JPEG",)), np.int16)
    return np.asarray(np.clip(GAIN * np.abs(picture.astype(np.int16) - again), 0, 255), np.uint8)


def make_image_network(
    name: str, classes: int, px: int, weights: Path | None = None, *, pretrained: bool = False
) -> nn.Module:
    """Return a network by name, float32 RGB [B, 3, px, px] (0..1) → logits [B, classes].

    weights: of its backbone, safetensors; pretrained: timm's, which are downloaded. Raises NetworkError,
    BackboneError and WeightsError.
    """
    check_image(name)
    front, backbone = parts_of(name)
    if name == F3NET:
        make = partial(make_features, XCEPTION, 3, px, weights, pretrained=pretrained)
        return F3Net(classes, px, make()[0], make()[0])
    if front == GRAM:
        return GramNet(make_levels(backbone, px, weights, pretrained=pretrained), classes)
    name = f"{front}:{backbone}" if front == HIGHPASS else backbone
    features, width = make_features(name, 3, px, weights, pretrained=pretrained)
    return sequence(backbone=features, head=nn.Linear(width, classes))
