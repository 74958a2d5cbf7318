"""Log power by spatial frequency: rings, the height of each ring's peaks, and repetitions by upsampling."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_RINGS, _INNER_RINGS = 16, 4
_PERIODS = (2, 4, 8)


class Spectrum(nn.Module):
    """float32 [N, S, S], luminance → float32 [N, 37], by a Fourier transform written as matrix products.

    Of log(power + 1) under a Hann window: the mean of each of 16 rings; how far the mean of the three
    highest of each of the outer twelve lies above the ring's; and the mean at the frequencies that an
    upsampling by 2, 4 or 8 repeats, along rows, along columns and along both, above that around them.

    A bin is a frequency (i, j), in cycles a crop down and across, of j in 0..S/2, the rest being its mirror
    image. Those of i in 0..S/2 come first, then those of -i for the same i, with 0 and S/2 once more; no
    mean reads these a second time.
    """

    across: Tensor
    down: Tensor
    means: Tensor
    members: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        self.across_bins = half = side // 2 + 1
        phase = 2 * math.pi / side * torch.outer(torch.arange(half), torch.arange(side)).double()
        waves = torch.cat([phase.cos(), phase.sin()]) * torch.hann_window(side, periodic=True).double()
        self._constant("down", waves.float())
        self._constant("across", waves.T.float().contiguous())
        radius = _radius(side)[:, :half]
        rings = [(radius >= k / _RINGS) & (radius < (k + 1) / _RINGS) for k in range(_RINGS)]
        at, around = _peaks(side)
        by_frequency = torch.cat([torch.stack([_mean(ring) for ring in rings], 1), at - around], 1)
        bins = _bins(side).flatten()
        means = torch.zeros(2 * half * half, by_frequency.shape[1])
        means[bins] = by_frequency
        self._constant("means", means)
        # The bin after the last is 0, and no power lies below it.
        members = [bins[ring.flatten()] for ring in rings[_INNER_RINGS:]]
        self.longest = max(len(ring) for ring in members)
        filled = [F.pad(ring, (0, self.longest - len(ring)), value=2 * half * half) for ring in members]
        self._constant("members", torch.cat(filled))

    def _constant(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def forward(self, luma: Tensor) -> Tensor:
        """Return rings, how far their peaks stand out, and the peaks of upsampling."""
        power = self.log_power(luma)
        means = power @ self.means
        rings, peaks = means[:, :_RINGS], means[:, _RINGS:]
        # Crops beside one another, so that runtimes fetch those of a bin at once.
        members = F.pad(power.T, (0, 0, 0, 1)).index_select(0, self.members)
        highest = members.reshape(_RINGS - _INNER_RINGS, self.longest, -1).topk(3, dim=1).values.mean(1).T
        return torch.cat([rings, highest - rings[:, _INNER_RINGS:], peaks], 1)

    def log_power(self, luma: Tensor) -> Tensor:
        """Return log(power + 1) of each bin, float32 [N, 2 * (S/2+1)^2]."""
        level = luma - luma.mean((1, 2), keepdim=True)
        cosine, sine = torch.split(self.down @ (level @ self.across), self.across_bins, 1)
        of_cosine, of_sine = (torch.split(part, self.across_bins, 2) for part in (cosine, sine))
        real = torch.stack([of_cosine[0] - of_sine[1], of_cosine[0] + of_sine[1]], 1)
        imaginary = torch.stack([of_cosine[1] + of_sine[0], of_cosine[1] - of_sine[0]], 1)
        return torch.log(real.square() + imaginary.square() + 1).flatten(1)


def _bins(side: int) -> Tensor:
    """Return where each frequency of the half plane is, int64 [S, S/2+1]."""
    half = side // 2 + 1
    first = torch.arange(half * half).reshape(half, half)
    return torch.cat([first, half * half + first[1:-1].flip(0)])


def _mean(mask: Tensor) -> Tensor:
    """Return the weights of a mean over a mask, float32 [L]."""
    return mask.flatten().float() / mask.sum()


def _radius(side: int) -> Tensor:
    frequency = torch.fft.fftfreq(side) * 2
    return torch.sqrt(frequency[:, None].square() + frequency[None].square())


def _peaks(side: int) -> tuple[Tensor, Tensor]:
    """Return two float32 [S * (S/2+1), P]: the mean at each repeated frequency, and around it."""
    i, j = torch.arange(side)[:, None], torch.arange(side // 2 + 1)
    ring = torch.ones(1, 1, 9, 9)
    ring[:, :, 2:-2, 2:-2] = 0
    at, around = [], []
    for period in _PERIODS:
        repeated = (i % (side // period) == 0) & (j % (side // period) == 0)
        for along in ((i > 0) & (j == 0), (i == 0) & (j > 0), (i > 0) & (j > 0)):
            centre = (repeated & along).float()
            beyond = F.pad(F.pad(centre[None, None], (0, 0, 4, 4), mode="circular"), (4, 4))
            at.append(_mean(centre))
            around.append(_mean(F.conv2d(beyond, ring)[0, 0] > 0))
    return torch.stack(at, 1), torch.stack(around, 1)
