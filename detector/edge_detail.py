"""How much fine detail a picture carries along its edges, for how steep they are.

Noise hides what a sharpening or a re-synthesis does to edges wherever there are none, so that each level
is a mean that weighs by the gradient; and the same where the picture is smooth, for comparison.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_REACH = 4
_BANDS = ((0.0, 0.8), (0.0, 1.5), (0.0, 2.5), (0.6, 1.0), (1.0, 2.5))
"""The two Gaussians, deviations in px, whose difference passes a band of detail; 0 is the picture itself."""
_FINE, _COARSE = 1.0, 1.8


class EdgeDetail(nn.Module):
    """float32 [N, 1, H, W], luminance in 0..255 with sides of at least 9 px → float32 [N, 18]."""

    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        gradients = [g for deviation in (_FINE, _COARSE) for g in _gradients(deviation)]
        bands = [_gaussian(inner) - _gaussian(outer) for inner, outer in _BANDS]
        self.register_buffer("kernels", torch.stack([*gradients, *bands])[:, None], persistent=False)

    def forward(self, luma: Tensor) -> Tensor:
        """Return log steepnesses and log levels of detail less those."""
        filtered = F.conv2d(luma - 128, self.kernels)
        fine = filtered[:, 0:1].square() + filtered[:, 1:2].square() + 1e-3
        coarse = filtered[:, 2:3].square() + filtered[:, 3:4].square() + 1e-3
        detail = filtered[:, 4:].square()
        steep = [_log_mean(fine, weight) for weight in (fine, coarse)]
        levels = [
            _log_mean(detail, weight) - steepness
            for weight, steepness in zip((fine, coarse), steep, strict=True)
        ]
        falls_off = _log_mean(coarse, fine) - steep[0]
        return torch.cat([*steep, *levels, falls_off, _log_mean(detail, 1 / (coarse + 4))], 1)


def _log_mean(squares: Tensor, weight: Tensor) -> Tensor:
    """Half the log of the weighted mean of squares [N, C, H, W], weight [N, 1, H, W]: float32 [N, C]."""
    share = weight / weight.sum((2, 3), keepdim=True)
    return 0.5 * torch.log((share * squares).sum((2, 3)) + 0.05)


def _gaussian(deviation: float) -> Tensor:
    at = torch.arange(-_REACH, _REACH + 1).double()
    bell = (at == 0).double() if deviation == 0 else torch.exp(-at.square() / (2 * deviation**2))
    bell = bell / bell.sum()
    return torch.outer(bell, bell).float()


def _gradients(deviation: float) -> tuple[Tensor, Tensor]:
    """Return the kernels of the horizontal and the vertical slope, in grey levels a pixel."""
    at = torch.arange(-_REACH, _REACH + 1).float()
    slope = _gaussian(deviation) * at
    slope = slope / (slope * at).sum()
    return slope, slope.T.contiguous()
