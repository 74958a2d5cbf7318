"""Networks that say where a picture is forged, by name.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.1.2.
Each also says whether the picture is forged. What is published as `unet_seg.py` is called `regression` here:
a 1 × 1 convolution and a nearest upsampling of the last feature map.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detector.model.backbone import check_name
from updater.benchmark.networks.images import NetworkError, make_levels

HRNET = "hrnet_w48"
REGRESSION = "regression"
DECODERS = {"unet": "Unet", "fpn": "FPN"}
"""by segmentation-models-pytorch's names"""


class MapNetwork(nn.Module):
    """float32 RGB [B, 3, S, S], 0..1 → float32 [B, 2 + S · S]: logits of real and forged, then of the map.

    The map's are row by row; their sigmoid is 0..1, 1 = forged.
    """

    def __init__(self, decode: nn.Module, width: int) -> None:
        super().__init__()
        self.decode, self.head = decode, nn.Linear(width, 2)

    def forward(self, pictures: Tensor) -> Tensor:
        deepest, cells = self.decode(pictures)
        return torch.cat([self.head(deepest.mean((2, 3))), cells.flatten(1)], 1)


def map_of(output: Tensor) -> Tensor:
    """Return the map, float32 [B, S, S] in 0..1, of a MapNetwork's output."""
    side = round((output.shape[1] - 2) ** 0.5)
    return output[:, 2:].sigmoid().view(-1, side, side)


class Regression(nn.Module):
    """The deepest feature map, and a 1 × 1 convolution of it brought to the picture's size."""

    def __init__(self, levels: nn.Module) -> None:
        super().__init__()
        self.levels = levels
        info: Any = levels.feature_info
        self.width: int = info.channels()[-1]
        self.cells = nn.Conv2d(self.width, 1, 1)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, C, h, w], and [B, 1, S, S]."""
        deepest = self.levels(pictures)[-1]
        return deepest, F.interpolate(self.cells(deepest), pictures.shape[2:], mode="nearest")


class HighResolution(nn.Module):
    """HRNet's maps of all resolutions brought to the finest one, and two 1 × 1 convolutions of them.

    Sun et al. 2019, "High-resolution representations for labeling pixels and regions".
    """

    def __init__(self, levels: nn.Module) -> None:
        super().__init__()
        self.levels = levels
        info: Any = levels.feature_info
        widths: list[int] = info.channels()[1:]
        self.width = sum(widths)
        self.cells = nn.Sequential(
            nn.Conv2d(self.width, self.width, 1, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
            nn.Conv2d(self.width, 1, 1),
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, C, S/4, S/4], and [B, 1, S, S]."""
        # The first is the stem's, before the resolutions part.
        maps = self.levels(pictures)[1:]
        side = maps[0].shape[2:]
        whole = torch.cat([F.interpolate(map_, side, mode="bilinear") for map_ in maps], 1)
        return whole, F.interpolate(self.cells(whole), pictures.shape[2:], mode="bilinear")


class EncoderDecoder(nn.Module):
    """An encoder and a decoder of segmentation-models-pytorch."""

    def __init__(self, kind: str, backbone: str) -> None:
        super().__init__()
        import segmentation_models_pytorch as smp  # it takes seconds, and not every network needs it

        try:
            self.model = getattr(smp, DECODERS[kind])(f"tu-{backbone}", encoder_weights=None, classes=1)
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            why = " ".join(str(error).split())[:120]
            raise NetworkError(f"{kind}:{backbone} cannot be made ({why}): name another backbone") from error
        self.width: int = self.model.encoder.out_channels[-1]

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, C, h, w], and [B, 1, S, S]."""
        levels = self.model.encoder(pictures)
        return levels[-1], self.model.segmentation_head(self.model.decoder(levels))


def check(name: str) -> None:
    """Raise NetworkError for a name that is none, and BackboneError for a backbone that is none."""
    kind, _, backbone = name.partition(":")
    if name != HRNET and not (backbone and kind in (REGRESSION, *DECODERS)):
        known = ", ".join(f"{kind}:BACKBONE" for kind in (REGRESSION, *DECODERS))
        raise NetworkError(f"--model {name} draws no maps: choose of {known} (any model of timm's), {HRNET}")
    check_name(backbone or HRNET)


def make_map_network(
    name: str, px: int, weights: Path | None = None, *, pretrained: bool = False
) -> nn.Module:
    """Return a network by name, for pictures of px; its output is described at MapNetwork.

    weights: of its backbone, safetensors; pretrained: timm's, which are downloaded; a network with a
    decoder begins at random. Raises NetworkError, BackboneError and WeightsError.
    """
    check(name)
    kind, _, backbone = name.partition(":")
    if kind in DECODERS:
        if weights is not None or pretrained:
            raise NetworkError(f"{name} begins at random: give weights to {REGRESSION}:BACKBONE or {HRNET}")
        decode: EncoderDecoder | Regression | HighResolution = EncoderDecoder(kind, backbone)
    elif kind == REGRESSION:
        decode = Regression(make_levels(backbone, px, weights, pretrained=pretrained))
    else:
        decode = HighResolution(make_levels(HRNET, px, weights, pretrained=pretrained))
    return MapNetwork(decode, decode.width)
