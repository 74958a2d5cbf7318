"""High-pass filters before a network, which then sees no scene: four of 5 × 5 on each colour, 12 channels.

Of Fridrich and Kodovský 2012, "Rich models for steganalysis of digital images", figure 1: the square of 5 × 5
and that of 3 × 3, and second differences along rows and along columns. The choice of the four is ours.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
