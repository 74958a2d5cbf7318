"""Networks that say what a picture is, by name: any model of timm's, and three front ends before one."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from detector.model.backbone import check_name
from updater.benchmark.networks import ela
from updater.benchmark.networks.classifier import (
    HIGHPASS,
    Classifier,
    NetworkError,
    make_features,
    make_levels,
)
from updater.benchmark.networks.gram import GramNet
from updater.filters import Picture

ELA, GRAM = "ela", "gram"
FRONT_ENDS = (ELA, HIGHPASS, GRAM)
"""NAME:BACKBONE; without a backbone the paper's, Xception"""
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
    return ela.levels if _parts(name)[0] == ELA else lambda picture: picture


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
