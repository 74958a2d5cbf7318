"""The second network of a release: where a picture is forged, a map of cells for each of its crops.

A small convolutional network on the residual front end, which knows no family. It sees each cell beside the
mean of all cells of the picture, for a forged region is what differs from the rest of its own picture.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.network import ResidualFrontEnd

_WIDE = 64
_DILATIONS = (1, 2, 4)
_MOST_LOGIT = 12.0


class Localizer(nn.Module):
    """Crops of pictures → the logit of each cell being forged."""

    def __init__(self) -> None:
        super().__init__()
        self.front = ResidualFrontEnd()
        self.stem = nn.Sequential(_normed(self.front.channels, 16), nn.ReLU(), nn.AvgPool2d(2))
        self.down = nn.Sequential(
            _normed(16, 32, stride=2), nn.ReLU(), _normed(32, _WIDE, stride=2), nn.ReLU()
        )
        self.beside = nn.Sequential(_normed(2 * _WIDE, _WIDE, size=1), nn.ReLU())
        self.around = nn.ModuleList(_Residual(_WIDE, dilation) for dilation in _DILATIONS)
        self.said = nn.Conv2d(_WIDE, 1, 1)

    def forward(self, crops: Tensor, of_picture: Tensor) -> Tensor:
        """Return float32 [N, S / 8, S / 8], logits.

        crops: float32 [N, 3, S, S] in 0..255, 8 divides S; of_picture: int64 [N], equal where two crops are
        of one picture.
        """
        seen = self.down(self.stem(self.front(crops)))
        mean = over_picture(seen.mean((2, 3)), of_picture)
        seen = self.beside(torch.cat([seen, seen - mean[:, :, None, None]], 1))
        for block in self.around:
            seen = block(seen)
        logits: Tensor = self.said(seen)[:, 0]
        return logits


class LocalizerGraph(nn.Module):
    """What `localizer.onnx` is made of: uint8 crops → the probability of each cell being forged.

    A cell's own probability is multiplied by that of its picture being forged anywhere: a logistic function
    (slope, offset) of the picture's evidence, which is learnt from pictures that were held back. So one
    threshold finds whole regions of forged pictures and leaves real ones alone.
    """

    slope: Tensor
    offset: Tensor

    def __init__(self, network: Localizer, slope: float, offset: float) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("slope", torch.tensor(slope))
        self.register_buffer("offset", torch.tensor(offset))

    def forward(self, crops: Tensor, of_picture: Tensor) -> dict[str, Tensor]:
        """Return `cells`, float32 [N, S / 8, S / 8] in 0..1, of crops uint8 [N, S, S, 3]."""
        logits = self.network(crops.permute(0, 3, 1, 2).float(), of_picture)
        forged = torch.sigmoid(self.slope * evidence(logits, of_picture) + self.offset)
        return {"cells": torch.sigmoid(logits) * forged[:, None, None]}


def evidence(logits: Tensor, of_picture: Tensor) -> Tensor:
    """Return the log of the mean odds over all cells of a crop's picture, float32 [N]: its strongest cells'.

    logits: float32 [N, h, w]; of_picture: int64 [N].
    """
    odds = torch.exp(logits.clamp(-_MOST_LOGIT, _MOST_LOGIT)).mean((1, 2))
    return torch.log(over_picture(odds[:, None], of_picture)[:, 0])


def over_picture(values: Tensor, of_picture: Tensor) -> Tensor:
    """Return the mean of each crop's picture, float32 [N, D], of what its crops have, float32 [N, D]."""
    together = (of_picture[:, None] == of_picture[None]).to(values.dtype)
    return (together / together.sum(1, keepdim=True)) @ values


class _Residual(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.within = nn.Sequential(
            _normed(width, width, dilation=dilation), nn.ReLU(), _normed(width, width, size=1)
        )

    def forward(self, seen: Tensor) -> Tensor:
        return F.relu(seen + self.within(seen))


def _normed(inputs: int, outputs: int, *, size: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    around = dilation * (size // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, around, dilation, bias=False), nn.BatchNorm2d(outputs)
    )
