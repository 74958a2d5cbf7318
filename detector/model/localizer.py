"""The second network of a release: where a picture is forged, a map of cells for each of its crops.

A small convolutional network on residuals, which knows no family. It sees each cell beside the mean of all
cells of the picture, for a forged region is what differs from the rest of its own picture; and once more
beside the mean of those that it then holds for forged and of those that it does not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.features.forensics import residual_kernels

_WIDE = 64
_MIDDLE = 32
_FIRST_DILATIONS, _SECOND_DILATIONS = (1, 2, 4), (1, 2)
_LEAST_STRENGTH, _LEAST_VARIANCE, _LEAST_WEIGHT = 1e-3, 0.05, 1e-3
_MOST_LOGIT = 12.0


class Localizer(nn.Module):
    """Crops of pictures → the logit of each cell being forged."""

    def __init__(self) -> None:
        super().__init__()
        self.residuals = Residuals()
        # Residuals are of one scale, so that the widest layer goes without a norm.
        self.down = nn.Sequential(
            nn.Conv2d(self.residuals.channels, _MIDDLE, 3, 1, 1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            _conv_norm(_MIDDLE, _WIDE),
            nn.ReLU(),
            nn.AvgPool2d(2),
        )
        known = _WIDE + self.residuals.channels
        self.beside = nn.Sequential(_conv_norm(2 * known, _WIDE, size=1), nn.ReLU())
        self.around = nn.Sequential(*(_Residual(_WIDE, dilation) for dilation in _FIRST_DILATIONS))
        self.guessed = nn.Conv2d(_WIDE, 1, 1)
        self.beside_guess = nn.Sequential(_conv_norm(3 * _WIDE, _WIDE, size=1), nn.ReLU())
        self.around_guess = nn.Sequential(*(_Residual(_WIDE, dilation) for dilation in _SECOND_DILATIONS))
        self.corrected = nn.Conv2d(_WIDE, 1, 1)

    def forward(self, crops: Tensor, of_picture: Tensor) -> Tensor:
        """Return float32 [N, S / 8, S / 8], logits.

        crops: float32 [N, 3, S, S] in 0..255, 8 divides S; of_picture: int64 [N], equal where two crops are
        of one picture.
        """
        return self.both(self.residuals(crops), of_picture)[1]

    def both(self, residuals: Tensor, of_picture: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the first look and those of the second, which count, from crops' residuals.

        Training asks for both, for the second look rests on the first one's guess.
        """
        strength = torch.log(F.avg_pool2d(residuals.square(), 4) + _LEAST_STRENGTH)
        seen = torch.cat([self.down(residuals), strength], 1)
        mean = over_picture(seen.mean((2, 3)), of_picture)[:, :, None, None]
        apart = seen - mean
        variance = over_picture(apart.square().mean((2, 3)), of_picture)[:, :, None, None]
        apart = apart / torch.sqrt(variance + _LEAST_VARIANCE)
        seen = self.around(self.beside(torch.cat([seen, apart], 1)))
        guess = self.guessed(seen)
        forged = torch.sigmoid(guess)
        others, alike = _weighted_mean(seen, 1 - forged, of_picture), _weighted_mean(seen, forged, of_picture)
        again = self.beside_guess(torch.cat([seen, seen - others, seen - alike], 1))
        return guess[:, 0], (guess + self.corrected(self.around_guess(again)))[:, 0]


class LocalizerGraph(nn.Module):
    """The module of `localizer.onnx`: uint8 crops → the probability of each cell being forged.

    A cell's own probability, of its logit beyond `cut`, is multiplied by that of its picture being forged
    anywhere: a logistic function (slope, offset) of the picture's evidence. All three come from pictures
    that were held back. So one threshold finds whole regions of forged pictures and leaves real ones alone.
    """

    cut: Tensor
    slope: Tensor
    offset: Tensor

    def __init__(self, network: Localizer, cut: float, slope: float, offset: float) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("cut", torch.tensor(cut))
        self.register_buffer("slope", torch.tensor(slope))
        self.register_buffer("offset", torch.tensor(offset))

    def forward(self, crops: Tensor, of_picture: Tensor) -> dict[str, Tensor]:
        """Return `cells`, float32 [N, S / 8, S / 8] in 0..1, of crops uint8 [N, S, S, 3]."""
        logits = self.network(crops.permute(0, 3, 1, 2).float(), of_picture)
        forged = torch.sigmoid(self.slope * evidence(logits, of_picture) + self.offset)
        return {"cells": torch.sigmoid(logits - self.cut) * forged[:, None, None]}


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


def _weighted_mean(seen: Tensor, weights: Tensor, of_picture: Tensor) -> Tensor:
    """Return a picture's mean over all cells, [N, D, 1, 1], by weights [N, 1, h, w]."""
    total = over_picture((seen * weights).mean((2, 3)), of_picture)
    weight = over_picture(weights.mean((2, 3)), of_picture)
    return (total / (weight + _LEAST_WEIGHT))[:, :, None, None]


class _Residual(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.within = nn.Sequential(
            _conv_norm(width, width, dilation=dilation), nn.ReLU(), _conv_norm(width, width, size=1)
        )

    def forward(self, seen: Tensor) -> Tensor:
        return F.relu(seen + self.within(seen))


def _conv_norm(inputs: int, outputs: int, *, size: int = 3, dilation: int = 1) -> nn.Sequential:
    around = dilation * (size // 2)
    convolution = nn.Conv2d(inputs, outputs, size, 1, around, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


_SIDE = 5
_STRIDE = 2
_LEVELS = (3.0, 20.0)
"""beyond so many of 255 grey levels a residual is cut off: noise lies within the first, halos the second"""
_LUMINANCE = (0.299, 0.587, 0.114)
_BLUE, _RED = (-0.3374, -0.6626, 1.0), (1.0, -0.8374, -0.1626)


class Residuals(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → float32 [N, channels, S / 2, S / 2] within -1..1; 2 divides S.

    Residuals of a crop, at two strengths. They begin as the linear residuals of rich models (Fridrich and
    Kodovsky 2012, "Rich models for steganalysis") and are learnt further. They stay free of brightness, for
    what each filter sums to over a channel is taken off it.
    """

    def __init__(self) -> None:
        super().__init__()
        of_luminance = residual_kernels()[:, 0] / torch.tensor([1, 1, 2, 2, 2, 2])[:, None, None]
        planes = [(plane, _LUMINANCE) for plane in of_luminance]
        planes += [(of_luminance[4], _BLUE), (of_luminance[4], _RED)]
        kernels = torch.stack([torch.tensor(colours)[:, None, None] * plane for plane, colours in planes])
        self.weight = nn.Parameter(torch.cat([kernels / level for level in _LEVELS]))
        self.bias = nn.Parameter(torch.zeros(len(self.weight)))

    @property
    def channels(self) -> int:
        return len(self.bias)

    def forward(self, crops: Tensor) -> Tensor:
        balanced = self.weight - self.weight.mean((2, 3), keepdim=True)
        return F.hardtanh(F.conv2d(crops, balanced, self.bias, _STRIDE, _SIDE // 2))
