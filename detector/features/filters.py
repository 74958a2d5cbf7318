"""Filters and windows written so that both torch and ONNX Runtime are quick at them.

Runtimes have fast kernels for matrix products and for convolutions of channels in fours; long chains of
passes over every pixel cost more than the arithmetic in them.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SQUARE_3 = ((-1, 2, -1), (2, -4, 2), (-1, 2, -1))
SQUARE_5 = (
    (-1, 2, -2, 2, -1),
    (2, -6, 8, -6, 2),
    (-2, 8, -12, 8, -2),
    (2, -6, 8, -6, 2),
    (-1, 2, -2, 2, -1),
)
"""Residuals of rich models (Fridrich and Kodovsky 2012): free of brightness and of slopes."""

_TOGETHER = 4


class Separable(nn.Module):
    """float32 [N, 1, H, W] → [N, C, H - K + 1, W - K + 1]: filters of K x K, each a column times a row.

    C is their number rounded up to a multiple of four; what is beyond them is 0.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, kernels: Sequence[tuple[Tensor, Tensor]]) -> None:
        """kernels: of each filter what lies along a column of the picture, and along a row, float32 [K]."""
        super().__init__()
        idle = [torch.zeros_like(kernels[0][0])] * (-len(kernels) % _TOGETHER)
        columns, rows = zip(*kernels, strict=True)
        self.register_buffer("columns", torch.stack([*columns, *idle])[:, None, :, None], persistent=False)
        self.register_buffer("rows", torch.stack([*rows, *idle])[:, None, None, :], persistent=False)

    def forward(self, plane: Tensor) -> Tensor:
        """Correlate the plane with each filter wherever it fits."""
        return F.conv2d(F.conv2d(plane, self.rows), self.columns, groups=len(self.columns))


class Windows(nn.Module):
    """float32 [..., S, S] → [..., count, count]: means of square windows that overlap by half."""

    means: Tensor

    def __init__(self, side: int, window: int) -> None:
        super().__init__()
        starts = range(0, side - window + 1, window // 2)
        self.count = len(starts)
        means = torch.zeros(side, self.count)
        for place, start in enumerate(starts):
            means[start : start + window, place] = 1 / window
        self.register_buffer("means", means, persistent=False)

    def forward(self, planes: Tensor) -> Tensor:
        """Return the windows' means."""
        means: Tensor = self.means.T @ (planes @ self.means)
        return means
