"""What noise and detail each place of a crop has: what a forged region disturbs, however small it is."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.features.filters import SQUARE_3, SQUARE_5
from detector.features.forensics import ForensicFeatures

CELLS, TRACES = 8, 6
CELL_WIDTH = TRACES * CELLS**2
"""columns of a crop"""
CELL_VERSION = "1"
"""of what these columns are; it goes up with every change of their values"""
_REACH = 2
_FLOOR = 0.1


class CellTraces(nn.Module):
    """Luminance, float32 [N, 1, S, S] → float32 [N, CELL_WIDTH]: six traces of each of 8 x 8 cells.

    A trace is log(mean of r² + 0.1) over a cell: r is the residual of second order across, down and along
    both (3 x 3 and 5 x 5; Fridrich and Kodovsky 2012, "Rich models for steganalysis"), and that across and
    down of the crop at half its size. Trace by trace, and in it row by row. S is even, and at least 32.
    """

    kernels: Tensor
    rows: Tensor
    half_rows: Tensor

    def __init__(self, crop_px: int) -> None:
        super().__init__()
        self.register_buffer("kernels", _kernels(), persistent=False)
        self.register_buffer("rows", _shares(crop_px), persistent=False)
        self.register_buffer("half_rows", _shares(crop_px // 2), persistent=False)

    def forward(self, luma: Tensor) -> Tensor:
        """Return the traces of each crop."""
        whole = _pooled(_residuals(luma, self.kernels), self.rows)
        half = _pooled(_residuals(F.avg_pool2d(luma, 2), self.kernels[:2]), self.half_rows)
        return torch.log(torch.cat([whole, half], 1) + _FLOOR).flatten(1)


class FrameFeatures(nn.Module):
    """Crops, float32 [N, 3, S, S] in 0..255 → what is seen of a frame, float32 [N, width].

    The forensic features of the whole crop, and the traces of its cells behind these.
    """

    luma: Tensor

    def __init__(self, crop_px: int) -> None:
        """Raises ValueError for a side that has no forensic features."""
        super().__init__()
        self.forensics, self.cells = ForensicFeatures(crop_px), CellTraces(crop_px)
        self.register_buffer("luma", torch.tensor([[0.299, 0.587, 0.114]]), persistent=False)
        self.crop_px = crop_px
        self.width = self.forensics.width + CELL_WIDTH

    def forward(self, crops: Tensor) -> Tensor:
        """Return the features of each crop."""
        side = self.crop_px
        # Runtimes are slow at convolutions of one pixel into one channel.
        luma = (self.luma @ crops.reshape(-1, 3, side**2)).reshape(-1, 1, side, side)
        return torch.cat([self.forensics(crops), self.cells(luma)], 1)


def _residuals(luma: Tensor, kernels: Tensor) -> Tensor:
    return F.conv2d(F.pad(luma, (_REACH,) * 4, mode="replicate"), kernels)


def _pooled(residuals: Tensor, shares: Tensor) -> Tensor:
    """Return the mean square of each cell, float32 [N, C, CELLS, CELLS]."""
    return shares.T @ (residuals.square() @ shares)


def _shares(side: int) -> Tensor:
    """Return what each pixel along a side weighs in each cell, float32 [side, CELLS]; a cell's sum is 1."""
    of_pixel = torch.arange(side) * CELLS // side
    within = F.one_hot(of_pixel, CELLS).float()
    return within / within.sum(0)


def _kernels() -> Tensor:
    kernels = torch.zeros(4, 1, 5, 5)
    kernels[0, 0, 2, 1:4] = torch.tensor([1.0, -2.0, 1.0])
    kernels[1, 0, 1:4, 2] = torch.tensor([1.0, -2.0, 1.0])
    kernels[2, 0, 1:4, 1:4] = torch.tensor(SQUARE_3).float() / 2
    kernels[3, 0] = torch.tensor(SQUARE_5).float() / 6
    return kernels
