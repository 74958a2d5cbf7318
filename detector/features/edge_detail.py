"""How much fine detail a picture carries along its edges, for how steep they are.

Noise hides what a sharpening or a re-synthesis does to edges wherever there are none, so that each level
is a mean that weighs by the gradient; and the same where the picture is smooth, for comparison.
"""

import torch
from torch import Tensor, nn

from detector.features.filters import Separable

_REACH = 4
_BANDS = ((0.0, 0.8), (0.0, 1.5), (0.0, 2.5), (0.6, 1.0), (1.0, 2.5))
"""The two Gaussians, deviations in px, whose difference passes a band of detail; 0 is the picture itself."""
_FINE, _COARSE = 1.0, 1.8


class EdgeDetail(nn.Module):
    """float32 [N, 1, S, S], luminance about 0 with S of at least 9 px → float32 [N, 18]."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.pixels = (side - 2 * _REACH) ** 2
        bells = [_bell(deviation) for pair in zip(*_BANDS, strict=True) for deviation in pair]
        slopes = [pair for deviation in (_FINE, _COARSE) for pair in _gradient(deviation)]
        self.filters = Separable([*((bell, bell) for bell in bells), *slopes])

    def forward(self, luma: Tensor) -> Tensor:
        """Return log steepnesses and log levels of detail less those."""
        filtered, bands = self.filters(luma).reshape(-1, 16, self.pixels), len(_BANDS)
        inner, outer, slopes = (
            filtered[:, :bands],
            filtered[:, bands : 2 * bands],
            filtered[:, 2 * bands : -2],
        )
        detail, squares = (inner - outer).square(), slopes.square()
        steep = squares[:, ::2] + squares[:, 1::2] + 1e-3
        fine, coarse = steep[:, :1], steep[:, 1:]
        along_fine, along_coarse = _log_means(steep, fine), _log_means(fine, coarse)
        return torch.cat(
            [
                along_fine[:, :1],
                along_coarse,
                _log_means(detail, fine) - along_fine[:, :1],
                _log_means(detail, coarse) - along_coarse,
                along_fine[:, 1:] - along_fine[:, :1],
                _log_means(detail, 1 / (coarse + 4)),
            ],
            1,
        )


def _log_means(squares: Tensor, weight: Tensor) -> Tensor:
    """Half the log of the weighted means of squares [N, C, P], weight [N, 1, P]: float32 [N, C]."""
    means = (weight @ squares.transpose(1, 2))[:, 0] / weight.sum(2)
    return 0.5 * torch.log(means + 0.05)


def _bell(deviation: float) -> Tensor:
    """Return a Gaussian of sum 1, float32 [2 * _REACH + 1]."""
    at = torch.arange(-_REACH, _REACH + 1).double()
    bell = (at == 0).double() if deviation == 0 else torch.exp(-at.square() / (2 * deviation**2))
    return (bell / bell.sum()).float()


def _gradient(deviation: float) -> list[tuple[Tensor, Tensor]]:
    """Return the slope across and the slope down, in grey levels a pixel, each as a column and a row."""
    bell, at = _bell(deviation), torch.arange(-_REACH, _REACH + 1).float()
    slope = bell * at / (bell * at.square()).sum()
    return [(bell, slope), (slope, bell)]
