"""How evenly noise lies over a picture, and how much detail its edges carry.

A region from another camera, or a filled hole, breaks the first; a sharpening or a re-synthesis the second.

Noise is measured window by window as the log energy of a residual. A camera's noise follows how bright and
how textured a window is, so that what these explain is taken out, by least squares within the crop, before
its spread is looked at.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_WINDOW, _SMALL_WINDOW = 16, 12
_REACH = 3
# Runtimes have fast kernels for matrix products and for convolutions of channels in fours; long chains of
# passes over every pixel cost more than the arithmetic in them.
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
        means: Tensor = self.means.T @ (planes @ self.means)
        return means


class LocalFilters(nn.Module):
    """float32 [N, 1, S, S], luminance → [N, 3, S, S]: its slopes across and down, and its Laplacian."""

    def __init__(self) -> None:
        super().__init__()
        at = torch.arange(-_REACH, _REACH + 1).float()
        bell = torch.exp(-at.square() / (2 * 1.5**2))
        slope = at * bell / (at.square() * bell).sum()
        bell = bell / bell.sum()
        second = torch.tensor([0.0, 0, -1, 2, -1, 0, 0])
        self.filters = Separable([(bell, slope), (slope, bell), (second, -second / 2)])

    def forward(self, luma: Tensor) -> Tensor:
        """Filter the plane, its outermost pixels repeated."""
        filtered: Tensor = self.filters(F.pad(luma, (_REACH,) * 4, mode="replicate"))
        return filtered


class LocalNoise(nn.Module):
    """Y, float32 [N, 1, S, S], Cb and Cr [N, 2, S, S], all about 0, Y's `LocalFilters` → float32 [N, 10].

    S is even and at least 32.
    """

    laplacian: Tensor
    told: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        second = torch.tensor([-1.0, 2, -1])
        self.register_buffer("laplacian", -torch.outer(second, second)[None, None] / 2, persistent=False)
        self.chroma_px = side // 2
        self.windows = Windows(side, _WINDOW)
        self.colour_windows = Windows(self.chroma_px, _WINDOW // 2)
        # Of what nothing explains the means are 0.
        chosen = [4 * row + column for row in range(3) for column in range(4) if row == 2 or column > 0]
        self.register_buffer("told", torch.tensor(chosen), persistent=False)

    def forward(self, luma: Tensor, chroma: Tensor, filtered: Tensor) -> Tensor:
        """Return how far the noise of luminance and of colour spreads, as such and unexplained."""
        texture = torch.log(self.windows(filtered[:, :2].square()).sum(1) + 0.1)
        noise = torch.log(self.windows(filtered[:, 2].abs()) + 0.3)
        brightness = self.windows(luma[:, 0]) / 64
        small = F.pad(F.avg_pool2d(chroma, 2), (1, 1, 1, 1), mode="replicate")
        planes = small.reshape(-1, 1, self.chroma_px + 2, self.chroma_px + 2)
        coloured = F.conv2d(planes, self.laplacian).square()
        energy = self.colour_windows(coloured.reshape(-1, 2, self.chroma_px, self.chroma_px)).sum(1)
        colour = torch.log(energy + 0.05)
        unexplained = _regress_out([noise, colour], [texture, brightness, brightness.square()])
        levels = torch.cat([unexplained, colour[:, None]], 1).reshape(-1, 3, self.windows.count**2)
        return _spread_statistics(levels, self.windows.count**2).flatten(1).index_select(1, self.told)


class NoiseLevels(nn.Module):
    """float32 [N, 2, H, H], a slope and a Laplacian → float32 [N, 8].

    How far the levels of noise, and of its sharpness, spread.
    """

    sharpness: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        self.windows = Windows(side, _SMALL_WINDOW)
        self.register_buffer("sharpness", torch.tensor([[0.0, 1.0], [-1.0, 1.0]]), persistent=False)

    def forward(self, residuals: Tensor) -> Tensor:
        """Return the spread of the Laplacian's level, and of that less the slope's."""
        levels = torch.log(self.windows(residuals.square()) + 0.5)
        count = self.windows.count**2
        return _spread_statistics(self.sharpness @ levels.reshape(-1, 2, count), count).flatten(1)


def _spread_statistics(values: Tensor, count: int) -> Tensor:
    """float32 [N, C, count] → [N, C, 4]: mean, deviation, and how far beyond it the outermost tenths lie."""
    mean = values.mean(2, keepdim=True)
    centred = values - mean
    deviation = torch.sqrt(centred.square().mean(2) + 1e-4)
    both = torch.stack([centred, -centred], 2)
    above, below = both.topk(max(1, count // 10), dim=3).values.mean(3).unbind(2)
    return torch.stack([mean[:, :, 0], deviation, above, -below], 2)


def _regress_out(values: list[Tensor], by: list[Tensor]) -> Tensor:
    """C of float32 [N, H, W] → [N, C, H, W]: less what a straight line in each of `by` explains of them.

    One after another, each made orthogonal to those before; nearly constant ones explain nothing.
    """
    left = torch.stack([*by, *values], 1)
    left = left - left.mean((2, 3), keepdim=True)
    for _ in by:
        axis, left = left[:, :1], left[:, 1:]
        strength = axis.square().mean((2, 3), keepdim=True) + 0.02
        left = left - axis * ((left * axis).mean((2, 3), keepdim=True) / strength)
    return left


_EDGE_REACH = 4
# The two Gaussians, deviations in px, whose difference passes a band of detail; 0 is the picture itself.
_BANDS = ((0.0, 0.8), (0.0, 1.5), (0.0, 2.5), (0.6, 1.0), (1.0, 2.5))
_FINE, _COARSE = 1.0, 1.8


class EdgeDetail(nn.Module):
    """float32 [N, 1, S, S], luminance about 0 with S of at least 9 px → float32 [N, 18].

    How much fine detail a picture carries along its edges, for how steep they are. Noise hides what a
    sharpening does to edges wherever there are none, so each level is a mean that weighs by the gradient; and
    the same where the picture is smooth, for comparison.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.pixels = (side - 2 * _EDGE_REACH) ** 2
        bells = [_bell(deviation) for pair in zip(*_BANDS, strict=True) for deviation in pair]
        slopes = [pair for deviation in (_FINE, _COARSE) for pair in _gradient(deviation)]
        self.filters = Separable([*((bell, bell) for bell in bells), *slopes])

    def forward(self, luma: Tensor) -> Tensor:
        """Return log steepnesses and log levels of detail less those."""
        filtered, bands = self.filters(luma).reshape(-1, 16, self.pixels), len(_BANDS)
        inner, outer = filtered[:, :bands], filtered[:, bands : 2 * bands]
        slopes = filtered[:, 2 * bands : -2]
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
    """Return a Gaussian of sum 1, float32 [2 * _EDGE_REACH + 1]."""
    at = torch.arange(-_EDGE_REACH, _EDGE_REACH + 1).double()
    bell = (at == 0).double() if deviation == 0 else torch.exp(-at.square() / (2 * deviation**2))
    return (bell / bell.sum()).float()


def _gradient(deviation: float) -> list[tuple[Tensor, Tensor]]:
    """Return the slope across and the slope down, in grey levels a pixel, each as a column and a row."""
    bell, at = _bell(deviation), torch.arange(-_EDGE_REACH, _EDGE_REACH + 1).float()
    slope = bell * at / (bell * at.square()).sum()
    return [(bell, slope), (slope, bell)]
