"""Hand-made forensic features of a crop, in torch: what a camera leaves and a forgery disturbs.

Everything is a convolution, a matrix product, a mean or a top-k, so that the features export to
ONNX with the network; nothing is rounded into bins, so a difference of 1e-4 in stays small.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.edge_detail import EdgeDetail
from detector.feature_columns import WIDTH
from detector.local_noise import LocalNoise, noise_levels

_RINGS = 16


class ForensicFeatures(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → float32 [N, width], for a fixed S that 8 divides.

    The groups, on luminance where nothing else is said (residual filters after Fridrich and
    Kodovsky 2012, "Rich models for steganalysis"):

    - six linear residuals: log variance, truncated means of the magnitude, autocorrelation;
    - log power by spatial frequency: rings, and how far each ring's peak stands out, from a DFT
      written as matrix products; peaks at the frequencies that an upsampling by 2, 4, 8 repeats;
    - 8x8 DCT on the JPEG grid: log mean magnitude and truncated mean of each coefficient;
    - the residual's energy by its phase on the 8x8 and on the 2x2 (Bayer) grid;
    - how much the noise level, and the noise's sharpness, vary from place to place, as such and beyond
      what texture and brightness explain (`local_noise`);
    - how much detail lies along edges, for how steep they are (`edge_detail`);
    - colour: the residuals of Cb and Cr, and how the residuals of R, G and B go together.
    """

    residual_kernels: Tensor
    ycc: Tensor
    dct: Tensor
    cosine: Tensor
    sine: Tensor
    window: Tensor
    ring_means: Tensor
    peak_at: Tensor
    peak_around: Tensor
    phase_dft: Tensor

    def __init__(self, crop_px: int) -> None:
        super().__init__()
        if crop_px % 8 or crop_px < 32:
            raise ValueError(f"a crop's side must be a multiple of 8 and at least 32 px, not {crop_px}")
        self.crop_px = crop_px
        half = crop_px // 2 + 1
        self._constant("residual_kernels", _residual_kernels())
        self._constant(
            "ycc", torch.tensor([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]])
        )
        self._constant("dct", _dct_kernels())
        phase = 2 * math.pi / crop_px * torch.outer(torch.arange(crop_px), torch.arange(crop_px)).double()
        self._constant("cosine", phase.cos().float())
        self._constant("sine", phase.sin().float())
        hann = torch.hann_window(crop_px, periodic=True)
        self._constant("window", torch.outer(hann, hann))
        radius = _radius(crop_px)[:, :half]
        rings = [((radius >= k / _RINGS) & (radius < (k + 1) / _RINGS)).flatten() for k in range(_RINGS)]
        self._constant("ring_means", torch.stack([r.float() / r.sum() for r in rings], 1))
        self._ring_members: list[str] = []
        for k, ring in enumerate(rings[4:], start=4):
            self._constant(f"ring_{k}", ring.nonzero().flatten())
            self._ring_members.append(f"ring_{k}")
        at, around = _peaks(crop_px)
        self._constant("peak_at", at)
        self._constant("peak_around", around)
        eighth = 2 * math.pi / 8 * torch.outer(torch.arange(8), torch.arange(1, 5)).double()
        self._constant("phase_dft", torch.cat([eighth.cos(), eighth.sin()], 1).float())
        self.local_noise, self.edge_detail = LocalNoise(), EdgeDetail()
        self.width = WIDTH

    def _constant(self, name: str, value: Tensor) -> None:
        # Not in the state dict: they follow from the feature version.
        self.register_buffer(name, value, persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        """crops: float32 [N, 3, S, S] in 0..255 → float32 [N, width]."""
        planes = torch.einsum("dc,nchw->ndhw", self.ycc, crops)
        luma = planes[:, :1]
        residuals = F.conv2d(luma, self.residual_kernels)
        laplacian = F.conv2d(crops, self.residual_kernels[4:5].repeat(3, 1, 1, 1), padding=2, groups=3)
        groups = [
            _residual_statistics(residuals),
            _autocorrelation(residuals),
            self._spectrum(luma[:, 0]),
            self._blocks(luma),
            self._grid_phase(luma),
            noise_levels(residuals),
            self.local_noise(planes),
            self.edge_detail(luma),
            self._colour(planes, laplacian),
        ]
        return torch.cat(groups, 1)

    def _spectrum(self, luma: Tensor) -> Tensor:
        flat = (luma - luma.mean((1, 2), keepdim=True)) * self.window
        half = self.crop_px // 2 + 1
        cos_half, sin_half = self.cosine[:, :half], self.sine[:, :half]
        rows_cos, rows_sin = self.cosine @ flat, self.sine @ flat
        real = rows_cos @ cos_half - rows_sin @ sin_half
        imaginary = rows_cos @ sin_half + rows_sin @ cos_half
        power = torch.log(real.square() + imaginary.square() + 1).flatten(1)
        rings = power @ self.ring_means
        stands_out = [
            power.index_select(1, getattr(self, name)).topk(3, dim=1).values.mean(1) - rings[:, k]
            for k, name in enumerate(self._ring_members, start=4)
        ]
        peaks = power @ self.peak_at - power @ self.peak_around
        return torch.cat([rings, torch.stack(stands_out, 1), peaks], 1)

    def _blocks(self, luma: Tensor) -> Tensor:
        magnitude = F.conv2d(luma - 128, self.dct, stride=8).abs()
        mean = torch.log(magnitude.mean((2, 3)) + 0.2)
        small = magnitude.clamp_max(1.5).mean((2, 3))
        return torch.cat([mean, small[:, 1:]], 1)

    def _grid_phase(self, luma: Tensor) -> Tensor:
        n, _, side, _ = luma.shape
        padded = F.pad(luma, (2, 2, 2, 2), mode="replicate")
        residual = F.conv2d(padded, self.residual_kernels[4:5]).abs()
        by_phase = residual.reshape(n, side // 8, 8, side // 8, 8).mean((1, 3))
        rows = torch.log(by_phase.mean(2) + 0.1)
        columns = torch.log(by_phase.mean(1) + 0.1)
        bayer = torch.log(by_phase.reshape(n, 4, 2, 4, 2).mean((1, 3)).flatten(1) + 0.1)
        profiles = [rows - rows.mean(1, keepdim=True), columns - columns.mean(1, keepdim=True)]
        # The strength of a grid wherever it lies: what the phases as such do not say.
        strengths = [self._phase_strength(p) for p in profiles]
        return torch.cat([*profiles, *strengths, bayer - bayer.mean(1, keepdim=True)], 1)

    def _phase_strength(self, profile: Tensor) -> Tensor:
        parts = profile @ self.phase_dft
        return torch.sqrt(parts[:, :4].square() + parts[:, 4:].square() + 1e-4)

    def _colour(self, planes: Tensor, laplacian: Tensor) -> Tensor:
        n, _, side, _ = planes.shape
        chroma = planes[:, 1:].reshape(2 * n, 1, side, side)
        residuals = F.conv2d(chroma, self.residual_kernels[1:5])
        magnitude = residuals.abs()
        statistics = torch.cat(
            [
                torch.log(residuals.square().mean((2, 3)) + 0.02),
                magnitude.clamp_max(0.5).mean((2, 3)),
                torch.log(magnitude.mean((2, 3)) + 0.02),
            ],
            1,
        ).reshape(n, -1)
        # Row by row: over a whole crop at once some kernels sum so inexactly that a network can tell.
        by_row = laplacian.transpose(1, 2)
        together = (by_row @ by_row.transpose(2, 3)).mean(1) / by_row.shape[3]
        power = together.diagonal(dim1=1, dim2=2)
        pairs = torch.stack([together[:, 0, 1], together[:, 0, 2], together[:, 1, 2]], 1)
        norms = torch.stack(
            [power[:, 0] * power[:, 1], power[:, 0] * power[:, 2], power[:, 1] * power[:, 2]], 1
        )
        level = torch.log(power + 0.1)
        by_phase = laplacian.abs().reshape(n, 3, side // 2, 2, side // 2, 2).mean((2, 4))
        bayer = torch.log(by_phase + 0.1).flatten(2)
        bayer = (bayer - bayer.mean(2, keepdim=True)).flatten(1)
        # On a Bayer mosaic green is measured on one diagonal of each 2x2 cell and guessed on the other.
        diagonal = torch.sqrt((bayer[:, 4] + bayer[:, 7] - bayer[:, 5] - bayer[:, 6]).square() + 1e-4)
        correlation = pairs / torch.sqrt(norms + 0.1)
        ratios = torch.stack([level[:, 0] - level[:, 1], level[:, 2] - level[:, 1]], 1)
        return torch.cat([statistics, correlation, ratios, bayer, diagonal[:, None]], 1)


def _residual_statistics(residuals: Tensor) -> Tensor:
    magnitude = residuals.abs()
    truncated = [magnitude.clamp_max(t).mean((2, 3)) / t for t in (1.0, 2.0, 4.0, 8.0)]
    variance = torch.log(residuals.square().mean((2, 3)) + 0.1)
    level = torch.log(magnitude.mean((2, 3)) + 0.1)
    return torch.cat([*truncated, variance, level, variance - 2 * level], 1)


def _autocorrelation(residuals: Tensor) -> Tensor:
    variance = residuals.square().mean((2, 3)) + 0.1
    height, width = residuals.shape[2], residuals.shape[3]
    lags = [(0, 1), (1, 0), (1, 1), (0, 2), (2, 0)]
    return torch.cat(
        [
            (residuals[:, :, dy:, dx:] * residuals[:, :, : height - dy, : width - dx]).mean((2, 3)) / variance
            for dy, dx in lags
        ],
        1,
    )


def _residual_kernels() -> Tensor:
    kernels = torch.zeros(6, 1, 5, 5)
    kernels[0, 0, 2, 2:4] = torch.tensor([-1.0, 1.0])
    kernels[1, 0, 2:4, 2] = torch.tensor([-1.0, 1.0])
    kernels[2, 0, 2, 1:4] = torch.tensor([1.0, -2.0, 1.0])
    kernels[3, 0, 1:4, 2] = torch.tensor([1.0, -2.0, 1.0])
    kernels[4, 0, 1:4, 1:4] = torch.tensor([[-1.0, 2, -1], [2, -4, 2], [-1, 2, -1]]) / 2
    kernels[5, 0] = (
        torch.tensor(
            [
                [-1.0, 2, -2, 2, -1],
                [2, -6, 8, -6, 2],
                [-2, 8, -12, 8, -2],
                [2, -6, 8, -6, 2],
                [-1, 2, -2, 2, -1],
            ]
        )
        / 6
    )
    return kernels


def _dct_kernels() -> Tensor:
    position, frequency = torch.arange(8).float(), torch.arange(8).float()[:, None]
    basis = torch.cos((2 * position + 1) * frequency * math.pi / 16) * 0.5
    basis[0] = math.sqrt(1 / 8)
    return torch.einsum("ux,vy->uvxy", basis, basis).reshape(64, 1, 8, 8)


def _radius(side: int) -> Tensor:
    frequency = torch.fft.fftfreq(side) * 2
    return torch.sqrt(frequency[:, None].square() + frequency[None].square())


def _peaks(side: int) -> tuple[Tensor, Tensor]:
    """Return two float32 [S * (S/2+1), P]: the bins of each repeated frequency, and those around them."""
    half = side // 2 + 1
    at, around = [], []
    for period in (2, 4, 8):
        step = side // period
        for kind in ("row", "column", "both"):
            centre, near = torch.zeros(side, half), torch.zeros(side, half)
            for i in range(0, side, step):
                for j in range(0, half, step):
                    wanted = {"row": i > 0 and j == 0, "column": i == 0 and j > 0, "both": i > 0 and j > 0}[
                        kind
                    ]
                    if not wanted:
                        continue
                    centre[i, j] = 1
                    for di in range(-4, 5):
                        for dj in range(-4, 5):
                            row, column = (i + di) % side, j + dj
                            if max(abs(di), abs(dj)) >= 3 and 0 <= column < half:
                                near[row, column] = 1
            at.append(centre.flatten() / centre.sum())
            around.append(near.flatten() / near.sum())
    return torch.stack(at, 1), torch.stack(around, 1)
