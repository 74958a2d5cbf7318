"""The localizer's first layer: residuals of a crop, at two strengths, whose filters are learnt further.

They begin as the linear residuals of rich models (Fridrich and Kodovsky 2012, "Rich models for steganalysis")
and stay free of brightness, for what each filter sums to over a channel is taken off it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.features.filters import SQUARE_3, SQUARE_5

_SIDE = 5
_STRIDE = 2
_LEVELS = (3.0, 20.0)
"""beyond so many of 255 grey levels a residual is cut off: noise lies within the first, halos the second"""
_LUMINANCE = (0.299, 0.587, 0.114)
_BLUE, _RED = (-0.3374, -0.6626, 1.0), (1.0, -0.8374, -0.1626)


class Residuals(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → float32 [N, channels, S / 2, S / 2] within -1..1; 2 divides S."""

    def __init__(self) -> None:
        super().__init__()
        first = torch.zeros(_SIDE, _SIDE)
        first[2, 2:4] = torch.tensor([-1.0, 1])
        second = torch.zeros(_SIDE, _SIDE)
        second[2, 1:4] = torch.tensor([0.5, -1, 0.5])
        square = torch.zeros(_SIDE, _SIDE)
        square[1:4, 1:4] = torch.tensor(SQUARE_3).float() / 4
        wide = torch.tensor(SQUARE_5).float()
        planes = [(one, _LUMINANCE) for one in (first, first.T, second, second.T, square, wide / 12)]
        planes += [(square, _BLUE), (square, _RED)]
        kernels = torch.stack([torch.tensor(colours)[:, None, None] * one for one, colours in planes])
        self.weight = nn.Parameter(torch.cat([kernels / level for level in _LEVELS]))
        self.bias = nn.Parameter(torch.zeros(len(self.weight)))

    @property
    def channels(self) -> int:
        """How many residuals there are."""
        return len(self.bias)

    def forward(self, crops: Tensor) -> Tensor:
        """Return what lies between the cut-offs."""
        balanced = self.weight - self.weight.mean((2, 3), keepdim=True)
        return F.hardtanh(F.conv2d(crops, balanced, self.bias, _STRIDE, _SIDE // 2))
