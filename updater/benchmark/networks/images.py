"""Networks that say what a picture is, by name: any model of timm's, and three front ends before one.

Gram-Net is Liu, Qi and Torr 2020, "Global texture enhancement for fake face detection in the wild", section
4: what channels do together, at several depths. A Gram block is a convolution to a few channels, the products
of all pairs of them, and two convolutions on that matrix. As ForgeryNet has it, there is one before three of
the stages. Error level analysis is Krawetz 2007, "A picture's worth"; quality and gain are ours: it gives
none.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from detector.model.backbone import check_name
from updater.benchmark.networks.classifier import (
    HIGHPASS,
    Classifier,
    NetworkError,
    make_features,
    make_levels,
)
from updater.filters import Picture

CHANNELS, WIDTH, BLOCKS = 16, 32, 3


class _GramBlock(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.align = nn.Sequential(
            nn.Conv2d(inputs, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU()
        )
        self.texture = nn.Sequential(
            nn.Conv2d(1, WIDTH, 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
        )

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
        """Return the logits of the classes."""
        levels = self.features(pictures)
        textures = [block(level) for block, level in zip(self.blocks, levels, strict=False)]
        logits: Tensor = self.head(torch.cat([levels[-1].mean((2, 3)), *textures], 1))
        return logits


ELA, GRAM = "ela", "gram"
FRONT_ENDS = (ELA, HIGHPASS, GRAM)
"""NAME:BACKBONE; without a backbone the paper's, Xception"""
JPEG_QUALITY, GAIN = 90, 15
_XCEPTION, _XCEPTION_PX, _PX = "legacy_xception", 299, 224


def check(name: str) -> None:
    """Raise BackboneError for a name that is none. A front end and its backbone are both looked at."""
    front, backbone = _parts(name)
    if front and front not in FRONT_ENDS:
        known = ", ".join(f"{one}:BACKBONE" for one in FRONT_ENDS)
        raise NetworkError(f"--model {name} looks at no pictures: choose of {known}, or any model of timm's")
    check_name(backbone)


def published_px(name: str) -> int:
    """Return the side of what the paper shows a network: 299 an Xception, 224 others."""
    return _XCEPTION_PX if "xception" in _parts(name)[1] else _PX


def front_of(name: str) -> Callable[[Picture], Picture]:
    """Return what is made of a crop, uint8 RGB [S, S, 3], before the network sees it."""
    return error_levels if _parts(name)[0] == ELA else lambda picture: picture


def error_levels(picture: Picture) -> Picture:
    """Return the absolute difference of uint8 RGB [H, W, 3] to its JPEG, times 15 and clipped, uint8."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=JPEG_QUALITY)
    again = np.asarray(Image.open(buffer), np.int16)
    return np.asarray(np.clip(GAIN * np.abs(picture.astype(np.int16) - again), 0, 255), np.uint8)


def make_image_network(
    name: str, classes: int, px: int, weights: Path | None = None, *, pretrained: bool = False
) -> nn.Module:
    """Return a network by name, float32 RGB [B, 3, px, px] (0..1) → logits [B, classes].

    weights: of its backbone, safetensors; pretrained: timm's, which are downloaded. Raises NetworkError,
    BackboneError and WeightsError.
    """
    check(name)
    front, backbone = _parts(name)
    if front == GRAM:
        return GramNet(make_levels(backbone, px, weights, pretrained=pretrained), classes)
    name = f"{front}:{backbone}" if front == HIGHPASS else backbone
    return Classifier(*make_features(name, 3, px, weights, pretrained=pretrained), classes)


def _parts(name: str) -> tuple[str, str]:
    """Return front end and backbone of a name; the first is empty where there is none."""
    front, colon, backbone = name.partition(":")
    if not colon and front in FRONT_ENDS:
        return front, _XCEPTION
    return (front, backbone) if colon else ("", front)
