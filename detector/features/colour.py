"""Colour as a camera leaves it: the residuals of Cb and Cr, and how those of R, G and B go together."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Colour(nn.Module):
    """float32 [N, 3, S, S] RGB in 0..255 and [N, 2, S, S] its Cb and Cr, S even → float32 [N, 42].

    Of four residuals of Cb and of Cr: log variance, truncated mean and log mean of the magnitude. Of the
    Laplacians of R, G and B: correlations, log ratios, and log magnitudes by phase on the Bayer grid.
    """

    kernels: Tensor
    laplacian: Tensor

    def __init__(self, side: int, kernels: Tensor) -> None:
        """kernels: float32 [4, 1, 3, 3], the last one the Laplacian."""
        super().__init__()
        self.side = side
        nothing = torch.zeros_like(kernels)
        each = torch.cat([torch.cat([kernels, nothing], 1), torch.cat([nothing, kernels], 1)])
        self.register_buffer("kernels", each, persistent=False)
        self.register_buffer("laplacian", kernels[3:].repeat(4, 1, 1, 1), persistent=False)

    def forward(self, crops: Tensor, chroma: Tensor) -> Tensor:
        """Return what is said of Cb and Cr, then of R, G and B."""
        return torch.cat([self._chroma(chroma), self._together(crops)], 1)

    def _chroma(self, chroma: Tensor) -> Tensor:
        residuals = F.conv2d(chroma[:, :, 1:-1, 1:-1], self.kernels).reshape(-1, 8, (self.side - 4) ** 2)
        magnitude = residuals.abs()
        statistics = [
            torch.log(residuals.square().mean(2) + 0.02),
            magnitude.clamp(0, 0.5).mean(2),
            torch.log(magnitude.mean(2) + 0.02),
        ]
        return torch.cat([one.reshape(-1, 2, 4) for one in statistics], 2).flatten(1)

    def _together(self, crops: Tensor) -> Tensor:
        side = self.side
        # The fourth channel is idle: runtimes are quick at channels in fours.
        four = torch.cat([crops, crops[:, :1]], 1)
        laplacian = F.conv2d(four, self.laplacian, padding=1, groups=4)[:, :3]
        # Eight rows of pixels at a time: over a whole crop at once some kernels sum so inexactly that a
        # network can tell. Channel by channel these are inner products, of which runtimes write nothing.
        parts = laplacian.reshape(-1, 3, side // 8, 1, 8 * side)
        products = [channel @ parts.transpose(3, 4) for channel in torch.split(parts, 1, 1)]
        together = torch.cat(products, 4).sum(2).reshape(-1, 9) / side**2
        power = torch.cat([together[:, :1], together[:, 4:5], together[:, 8:]], 1)
        pairs = torch.cat([together[:, 1:3], together[:, 5:6]], 1)
        norms = torch.cat([power[:, :1] * power[:, 1:], power[:, 1:2] * power[:, 2:]], 1)
        level = torch.log(power + 0.1)
        ratios = level[:, ::2] - level[:, 1:2]
        by_row = laplacian.abs().reshape(-1, 3, side // 2, 2 * side).mean(2)
        by_phase = by_row.reshape(-1, 6, side // 2, 2).mean(2).reshape(-1, 3, 4)
        bayer = torch.log(by_phase + 0.1)
        bayer = (bayer - bayer.mean(2, keepdim=True)).flatten(1)
        # On a Bayer mosaic green is measured on one diagonal of each 2x2 cell and guessed on the other.
        diagonal = torch.sqrt((bayer[:, 4] + bayer[:, 7] - bayer[:, 5] - bayer[:, 6]).square() + 1e-4)
        return torch.cat([pairs / torch.sqrt(norms + 0.1), ratios, bayer, diagonal[:, None]], 1)
