"""A backbone of timm's under a linear head, high-pass filters before it, and the error of a wrong name.

The filters leave no scene: four of 5 × 5 on each colour, 12 channels, of Fridrich and Kodovský 2012, "Rich
models for steganalysis of digital images", figure 1: the square of 5 × 5 and that of 3 × 3, and second
differences along rows and along columns. The choice of the four is ours.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detector.model.backbone import check_name, make_backbone, size_option
from updater.training.weights import chosen, put_backbone

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


HIGHPASS = "highpass"


class NetworkError(ValueError):
    """A network that there is none of. One line: which, and what there is."""


class Classifier(nn.Module):
    """float32 RGB [B, 3, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of the classes."""
        logits: Tensor = self.head(self.backbone(pictures))
        return logits


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
            raise NetworkError(
                f"--model {name}: {front} is none here: choose of {HIGHPASS}:BACKBONE, BACKBONE"
            )
        features, width = make_features(model, CHANNELS, px, weights, pretrained=pretrained)
        return nn.Sequential(HighPass(), features), width
    backbone, width = make_backbone(name, channels, px)
    if (found := chosen(name, weights, pretrained)) is not None:
        put_backbone(backbone, name, px, found)
    return backbone, width


def make_levels(name: str, px: int, weights: Path | None = None, *, pretrained: bool = False) -> nn.Module:
    """Return timm's model as what gives its feature maps at every depth, the last one last.

    weights, pretrained: as `make_features` has them. Raises NetworkError for a model that gives none,
    BackboneError and WeightsError.
    """
    import timm  # it takes seconds, and not every network needs it

    check_name(name)
    try:
        levels: nn.Module = timm.create_model(
            name, pretrained=False, features_only=True, **size_option(name, px)
        )
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:120]
        raise NetworkError(f"{name} gives no maps of features ({why}): name another model") from error
    if weights is not None or pretrained:
        whole, _ = make_features(name, 3, px, weights, pretrained=pretrained)
        there = whole.state_dict()
        if lacking := sorted(levels.state_dict().keys() - there.keys()):
            raise NetworkError(f"{name} has no {lacking[0]} as a whole: begin at random")
        levels.load_state_dict({key: there[key] for key in levels.state_dict()})
    return levels
