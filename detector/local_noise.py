"""How evenly noise lies over a picture: what a region from another camera, or a filled hole, breaks.

Noise is measured window by window as the log energy of a residual. A camera's noise follows how bright and
how textured a window is, so that what these explain is taken out, by least squares within the crop, before
its spread is looked at.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_WINDOW, _SMALL_WINDOW = 16, 12


class LocalNoise(nn.Module):
    """float32 [N, 3, S, S], Y in 0..255, Cb and Cr about 0, with S even and at least 32 → float32 [N, 10]."""

    laplacian: Tensor
    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        laplacian = torch.tensor([[-1.0, 2, -1], [2, -4, 2], [-1, 2, -1]])[None, None] / 2
        self.register_buffer("laplacian", laplacian, persistent=False)
        bell = torch.exp(-torch.arange(-3.0, 4).square() / (2 * 1.5**2))
        slope = torch.outer(bell, torch.arange(-3.0, 4) * bell)
        slope = slope / (slope * torch.arange(-3.0, 4)).sum()
        self.register_buffer("slopes", torch.stack([slope, slope.T])[:, None], persistent=False)

    def forward(self, planes: Tensor) -> Tensor:
        """Return how far the noise of luminance and of colour spreads, as such and unexplained."""
        luma, chroma = planes[:, :1], F.avg_pool2d(planes[:, 1:], 2)
        noise = _log_windows(self._filtered(luma, self.laplacian).abs(), _WINDOW, 0.3)
        texture = _log_windows(self._filtered(luma, self.slopes).square().sum(1, keepdim=True), _WINDOW, 0.1)
        brightness = F.avg_pool2d(luma, _WINDOW, _WINDOW // 2).flatten(1) / 64 - 2
        coloured = torch.cat([self._filtered(chroma[:, i : i + 1], self.laplacian) for i in (0, 1)], 1)
        colour = _log_windows(coloured.square().sum(1, keepdim=True), _WINDOW // 2, 0.05)
        explained_by = [texture, brightness, brightness.square()]
        return torch.cat(
            [
                _spread(_unexplained(noise, explained_by))[:, 1:],
                _spread(_unexplained(colour, explained_by))[:, 1:],
                _spread(colour),
            ],
            1,
        )

    def _filtered(self, plane: Tensor, kernels: Tensor) -> Tensor:
        reach = kernels.shape[-1] // 2
        return F.conv2d(F.pad(plane, (reach, reach, reach, reach), mode="replicate"), kernels)


def noise_levels(residuals: Tensor) -> Tensor:
    """How far the levels of noise, and of its sharpness, spread: float32 [N, 6, H, W] → [N, 8].

    residuals: those of `detector.forensics`, whose fifth is the Laplacian and whose second the slope.
    """
    fine = F.avg_pool2d(residuals[:, 4:5].square(), _SMALL_WINDOW, _SMALL_WINDOW // 2).flatten(1)
    coarse = F.avg_pool2d(residuals[:, 1:2].square(), _SMALL_WINDOW, _SMALL_WINDOW // 2).flatten(1)
    noise = torch.log(fine + 0.5)
    sharpness = noise - torch.log(coarse + 0.5)
    return torch.cat([_spread(noise), _spread(sharpness)], 1)


def _spread(values: Tensor) -> Tensor:
    """float32 [N, L] → [N, 4]: mean, deviation, and how far above and below it the outermost tenths lie."""
    tenth = max(1, values.shape[1] // 10)
    mean = values.mean(1)
    centred = values - mean[:, None]
    deviation = torch.sqrt(centred.square().mean(1) + 1e-4)
    highest = values.topk(tenth, dim=1).values.mean(1) - mean
    lowest = values.topk(tenth, dim=1, largest=False).values.mean(1) - mean
    return torch.stack([mean, deviation, highest, lowest], 1)


def _log_windows(energy: Tensor, window: int, floor: float) -> Tensor:
    return torch.log(F.avg_pool2d(energy, window, window // 2) + floor).flatten(1)


def _unexplained(values: Tensor, by: list[Tensor]) -> Tensor:
    """float32 [N, L] less what a straight line in each of `by`, float32 [N, L], explains of it.

    One after another, each made orthogonal to those before; nearly constant ones explain nothing.
    """
    left, axes = values - values.mean(1, keepdim=True), list[Tensor]()
    for one in by:
        axis = one - one.mean(1, keepdim=True)
        for other in axes:
            axis = axis - other * _coefficient(axis, other)
        axes.append(axis)
        left = left - axis * _coefficient(left, axis)
    return left


def _coefficient(values: Tensor, axis: Tensor) -> Tensor:
    return (values * axis).mean(1, keepdim=True) / (axis.square().mean(1, keepdim=True) + 0.02)
