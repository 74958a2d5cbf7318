"""Hand-made forensic features of a crop, in torch: traces that a camera leaves and a forgery disturbs.

Everything is a convolution, a matrix product, a mean or a top-k, so that the features export to
ONNX with the network; nothing is rounded into bins, so a difference of 1e-4 in stays small.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.features.local_noise import EdgeDetail, LocalFilters, LocalNoise, NoiseLevels
from detector.features.spectrum import Spectrum
from detector.release.manifest import FORENSIC_WIDTH

_SQUARE_3 = ((-1, 2, -1), (2, -4, 2), (-1, 2, -1))
# Residuals of rich models (Fridrich and Kodovsky 2012): free of brightness and of slopes.
_SQUARE_5 = (
    (-1, 2, -2, 2, -1),
    (2, -6, 8, -6, 2),
    (-2, 8, -12, 8, -2),
    (2, -6, 8, -6, 2),
    (-1, 2, -2, 2, -1),
)


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
        both = torch.cat([torch.cat([kernels, nothing], 1), torch.cat([nothing, kernels], 1)])
        self.register_buffer("kernels", both, persistent=False)
        self.register_buffer("laplacian", kernels[3:].repeat(4, 1, 1, 1), persistent=False)

    def forward(self, crops: Tensor, chroma: Tensor) -> Tensor:
        return torch.cat([self._chroma(chroma), self._together(crops)], 1)

    def _chroma(self, chroma: Tensor) -> Tensor:
        residuals = F.conv2d(chroma[:, :, 1:-1, 1:-1], self.kernels).reshape(-1, 8, (self.side - 4) ** 2)
        magnitude = residuals.abs()
        statistics = [
            torch.log(residuals.square().mean(2) + 0.02),
            magnitude.clamp(0, 0.5).mean(2),
            torch.log(magnitude.mean(2) + 0.02),
        ]
        return torch.cat([statistic.reshape(-1, 2, 4) for statistic in statistics], 2).flatten(1)

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


_LAGS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
_TRUNCATED_AT = (1.0, 2.0, 4.0, 8.0)


class ForensicFeatures(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → float32 [N, width], for a fixed S that 8 divides.

    The groups, on luminance where nothing else is said (residual filters after Fridrich and
    Kodovsky 2012, "Rich models for steganalysis"):

    - six linear residuals: log variance, truncated means of the magnitude, autocorrelation;
    - log power by spatial frequency (`spectrum`);
    - 8x8 DCT on the JPEG grid: log mean magnitude and truncated mean of each coefficient;
    - the residual's energy by its phase on the 8x8 and on the 2x2 (Bayer) grid;
    - how much the noise level, and the noise's sharpness, vary from place to place, as such and beyond
      what texture and brightness explain (`local_noise`);
    - how much detail lies along edges, for how steep they are (`edge_detail`);
    - colour: the residuals of Cb and Cr, and how the residuals of R, G and B go together (`colour`).
    """

    ycc: Tensor
    residual_kernels: Tensor
    dct: Tensor
    by_phase: Tensor
    phase_dft: Tensor

    def __init__(self, crop_px: int) -> None:
        super().__init__()
        if crop_px % 8 or crop_px < 32:
            raise ValueError(f"a crop's side must be a multiple of 8 and at least 32 px, not {crop_px}")
        self.crop_px = crop_px
        kernels = residual_kernels()
        self._constant("residual_kernels", kernels)
        ycc = [[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]]
        self._constant("ycc", torch.tensor(ycc))
        self._constant("dct", _dct_kernels())
        self._constant("by_phase", torch.eye(8).repeat(crop_px // 8, 1) / (crop_px // 8))
        eighth = 2 * math.pi / 8 * torch.outer(torch.arange(8), torch.arange(1, 5)).double()
        self._constant("phase_dft", torch.cat([eighth.cos(), eighth.sin()], 1).float())
        self.spectrum, self.edge_detail = Spectrum(crop_px), EdgeDetail(crop_px)
        self.local_filters, self.local_noise = LocalFilters(), LocalNoise(crop_px)
        self.noise_levels = NoiseLevels(crop_px - 4)
        self.colour = Colour(crop_px, kernels[1:5, :, 1:4, 1:4])
        self.width = FORENSIC_WIDTH

    def _constant(self, name: str, value: Tensor) -> None:
        # Not in the state dict: they follow from the feature version.
        self.register_buffer(name, value, persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        """crops: float32 [N, 3, S, S] in 0..255 → float32 [N, width]."""
        side = self.crop_px
        planes = (self.ycc @ crops.reshape(-1, 3, side**2)).reshape(-1, 3, side, side)
        luma, chroma = planes[:, :1] - 128, planes[:, 1:]
        residuals = F.conv2d(luma, self.residual_kernels)
        filtered = self.local_filters(luma)
        groups = [
            _residual_statistics(residuals, side - 4),
            self.spectrum(luma[:, 0]),
            self._blocks(luma),
            self._grid_phase(filtered[:, 2]),
            self.noise_levels(residuals[:, 1::3]),
            self.local_noise(luma, chroma, filtered),
            self.edge_detail(luma),
            self.colour(crops, chroma),
        ]
        return torch.cat(groups, 1)

    def _blocks(self, luma: Tensor) -> Tensor:
        magnitude = F.conv2d(luma, self.dct, stride=8).reshape(-1, 64, (self.crop_px // 8) ** 2).abs()
        mean = torch.log(magnitude.mean(2) + 0.2)
        small = magnitude.clamp(0, 1.5).mean(2)
        return torch.cat([mean, small[:, 1:]], 1)

    def _grid_phase(self, laplacian: Tensor) -> Tensor:
        by_phase = self.by_phase.T @ (laplacian.abs() @ self.by_phase)
        along = torch.log(torch.stack([by_phase.mean(2), by_phase.mean(1)], 1) + 0.1)
        profiles = along - along.mean(2, keepdim=True)
        # The strength of a grid wherever it lies: what the phases as such do not say.
        parts = (profiles @ self.phase_dft).square()
        strengths = torch.sqrt(parts[:, :, :4] + parts[:, :, 4:] + 1e-4)
        cells = by_phase.reshape(-1, 4, 2, 4, 2).mean((1, 3)).flatten(1)
        bayer = torch.log(cells + 0.1)
        return torch.cat([profiles.flatten(1), strengths.flatten(1), bayer - bayer.mean(1, keepdim=True)], 1)


def _residual_statistics(residuals: Tensor, side: int) -> Tensor:
    """Return truncated means, log variance, log mean magnitude, their ratio, and autocorrelations."""
    magnitude = residuals.abs().reshape(-1, 6, side**2)
    truncated = [magnitude.clamp(0, t).mean(2) / t for t in _TRUNCATED_AT]
    products = _lagged_products(residuals, side)
    power = products[:, :, :1] + 0.1
    variance, level = torch.log(power).flatten(1), torch.log(magnitude.mean(2) + 0.1)
    correlations = (products[:, :, 1:] / power).transpose(1, 2).flatten(1)
    return torch.cat([*truncated, variance, level, variance - 2 * level, correlations], 1)


def _lagged_products(residuals: Tensor, side: int) -> Tensor:
    """Return the mean product of pixels at each of _LAGS, float32 [N, 6, S, S] → [N, 6, L]."""
    # Beyond the right and the lower end are zeros, so that a lag is one shift of all pixels in one row.
    reach = max(max(lag) for lag in _LAGS)
    width = side + reach
    pixels = F.pad(residuals, (0, reach, 0, reach)).reshape(-1, 1, width**2)
    starts = [dy * width + dx for dy, dx in _LAGS]
    shifted = [pixels[:, :, start : start + side * width] for start in starts]
    sums = torch.cat([shifted[0] @ other.transpose(1, 2) for other in shifted], 2)
    counts = [float((side - dy) * (side - dx)) for dy, dx in _LAGS]
    return sums.reshape(-1, 6, len(_LAGS)) / sums.new_tensor(counts)


def residual_kernels() -> Tensor:
    """Return six linear residuals, float32 [6, 1, 5, 5], the last ones free of brightness and of slopes.

    First differences across and down, second ones across and down, and squares of 3 x 3 and of 5 x 5.
    """
    kernels = torch.zeros(6, 1, 5, 5)
    kernels[0, 0, 2, 2:4] = torch.tensor([-1.0, 1.0])
    kernels[1, 0, 2:4, 2] = torch.tensor([-1.0, 1.0])
    kernels[2, 0, 2, 1:4] = torch.tensor([1.0, -2.0, 1.0])
    kernels[3, 0, 1:4, 2] = torch.tensor([1.0, -2.0, 1.0])
    kernels[4, 0, 1:4, 1:4] = torch.tensor(_SQUARE_3).float() / 2
    kernels[5, 0] = torch.tensor(_SQUARE_5).float() / 6
    return kernels


def _dct_kernels() -> Tensor:
    position, frequency = torch.arange(8).float(), torch.arange(8).float()[:, None]
    basis = torch.cos((2 * position + 1) * frequency * math.pi / 16) * 0.5
    basis[0] = math.sqrt(1 / 8)
    return torch.einsum("ux,vy->uvxy", basis, basis).reshape(64, 1, 8, 8)
