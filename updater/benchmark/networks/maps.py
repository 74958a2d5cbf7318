"""Networks that say where a picture is forged, by name.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.1.2.
Each also says whether the picture is forged. What is published as `unet_seg.py` is called `regression` here:
a 1 × 1 convolution and a nearest upsampling of the last feature map.
"""

from pathlib import Path
from typing import Any

import torch
from timm.layers.conv_bn_act import ConvNormAct
from torch import Tensor, nn
from torch.nn import functional as F

from updater.benchmark.networks.images import begin_levels, make_levels
from updater.benchmark.networks.names import DECODERS, HRNET, REGRESSION, NetworkError, check_maps


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
        self.cells = nn.Sequential(ConvNormAct(self.width, self.width), nn.Conv2d(self.width, 1, 1))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, C, S/4, S/4], and [B, 1, S, S]."""
        # The first is the stem's, before the resolutions part.
        maps = self.levels(pictures)[1:]
        side = maps[0].shape[2:]
        whole = torch.cat([F.interpolate(map_, side, mode="bilinear") for map_ in maps], 1)
        return whole, F.interpolate(self.cells(whole), pictures.shape[2:], mode="bilinear")


class EncoderDecoder(nn.Module):
    """An encoder and a decoder of segmentation-models-pytorch."""

    def __init__(
        self, kind: str, backbone: str, px: int = 64, weights: Path | None = None, pretrained: bool = False
    ) -> None:
        super().__init__()
        import segmentation_models_pytorch as smp  # it takes seconds, and not every network needs it

        try:
            self.model = smp.create_model(kind, f"tu-{backbone}", encoder_weights=None, classes=1)
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            why = " ".join(str(error).split())[:120]
            raise NetworkError(f"{kind}:{backbone} cannot be made ({why}): name another backbone") from error
        begin_levels(self.model.encoder.model, backbone, px, weights, pretrained=pretrained)
        self.width: int = self.model.encoder.out_channels[-1]

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, C, h, w], and [B, 1, S, S]."""
        levels = self.model.encoder(pictures)
        return levels[-1], self.model.segmentation_head(self.model.decoder(levels))


def make_map_network(
    name: str, px: int, weights: Path | None = None, *, pretrained: bool = False
) -> nn.Module:
    """Return a network by name, for pictures of px; its output is described at MapNetwork.

    weights: of its backbone, safetensors; pretrained: timm's, which are downloaded. Raises NetworkError,
    BackboneError and WeightsError.
    """
    check_maps(name)
    kind, _, backbone = name.partition(":")
    if kind in DECODERS:
        decode: Any = EncoderDecoder(kind, backbone, px, weights, pretrained)
    elif kind == REGRESSION:
        decode = Regression(make_levels(backbone, px, weights, pretrained=pretrained))
    else:
        decode = HighResolution(make_levels(HRNET, px, weights, pretrained=pretrained))
    return MapNetwork(decode, decode.width)
