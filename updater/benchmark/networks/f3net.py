"""F3-Net: Qian et al. 2020, "Thinking in frequency: Face forgery detection by mining frequency-aware clues".

- FAD, section 3.1: bands of a picture's discrete cosine transform, each turned back into a picture. A filter
  is a base of zeros and ones plus σ(w), σ(x) = (1 - exp(-x)) / (1 + exp(-x)), with learnt w. By the sum of
  their two numbers, the bands have the first sixteenth of all coefficients, the second one, and the rest.
- LFS, section 3.2: the logarithm of the sum of absolute filtered coefficients of each grey window of 10 × 10,
  two pixels apart, in six bands of equal width. Its map has the size that Xception's first convolution gives.
- MixBlock, section 3.3, behind Xception's blocks 7 and 12: products of rows, summed over both streams, say
  how much a stream takes of the other. Its form is that of public implementations, for the authors released
  none; normalisation that starts at zero stands for their learnt factor.

ForgeryNet prints 57.3 million parameters. These are 48.2: 41.6 of two Xceptions, .3 of FAD and 6.3 of the
MixBlocks. The public code has 42.0, and no network with its MixBlock. Nothing published has the other 9.1.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor, nn
from torch.nn import functional as F

FAD_EDGES = (0.0, 8**-0.5, 0.5, 2.0)
"""of bands, in sides: up to a sum of s ≤ 1 sides lies s² / 2 of all coefficients"""
LFS_EDGES = tuple(band / 3 for band in range(7))
WINDOW, STEP = 10, 2
_GREY = (76.2, 149.7, 29.1)
"""of ITU-R BT.601, for levels of 0..255"""
_LEAST = 1e-6


class BandFilters(nn.Module):
    """Filters of bands, float32 [M, S, S], beside the cosine transform of S numbers, `basis` [S, S]."""

    basis: Tensor
    base: Tensor

    def __init__(self, side: int, edges: Sequence[float]) -> None:
        super().__init__()
        basis = dct(np.eye(side, dtype="f4"), axis=0, norm="ortho")
        self.register_buffer("basis", torch.from_numpy(basis), False)
        place = (torch.arange(side)[:, None] + torch.arange(side)) / side
        base = torch.stack([((low <= place) & (place < high)).float() for low, high in pairwise(edges)])
        self.register_buffer("base", base, False)
        self.learnt = nn.Parameter(0.1 * torch.randn(base.shape))

    def forward(self) -> Tensor:
        return torch.add(self.base, torch.tanh(self.learnt / 2))


class Decomposition(nn.Module):
    """FAD: float32 RGB [B, 3, S, S] → float32 [B, 3 M, S, S], all colours of a band beside one another."""

    def __init__(self, px: int) -> None:
        super().__init__()
        self.filters = BandFilters(px, FAD_EDGES)

    def forward(self, pictures: Tensor) -> Tensor:
        basis = self.filters.basis
        spectrum = basis @ pictures @ basis.T
        bands: Tensor = spectrum[:, None] * self.filters()[:, None]
        return (basis.T @ bands @ basis).flatten(1, 2)


class LocalStatistics(nn.Module):
    """LFS: float32 RGB [B, 3, S, S], 0..1 → float32 [B, 6, s, s], s = (S - 3) // 2 + 1."""

    waves: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.filters = BandFilters(WINDOW, LFS_EDGES)
        waves = torch.einsum("c,ui,vj->uvcij", torch.tensor(_GREY), *2 * [self.filters.basis])
        self.register_buffer("waves", waves.flatten(0, 1), False)

    def forward(self, pictures: Tensor) -> Tensor:
        spectrum = F.conv2d(F.pad(pictures, (4, 3, 4, 3)), self.waves, stride=STEP)
        weights = self.filters().abs().flatten(1)[..., None, None]
        return torch.log10(F.conv2d(spectrum.abs(), weights) + _LEAST)


class MixBlock(nn.Module):
    """The maps of both streams, float32 [B, width, H, H] each → the same, each with some of the other's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries_and_keys = nn.ModuleList(nn.Conv2d(width, 2 * width, 1) for _ in range(2))
        self.norm_fad, self.norm_lfs = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        for norm in (self.norm_fad, self.norm_lfs):
            nn.init.zeros_(norm.weight)

    def forward(self, fad: Tensor, lfs: Tensor) -> tuple[Tensor, Tensor]:
        maps = zip(self.queries_and_keys, (fad, lfs), strict=True)
        pairs = [project(own).chunk(2, 1) for project, own in maps]
        attention = sum(query @ key.mT for query, key in pairs).softmax(-1)
        return fad + self.norm_fad(lfs * attention), lfs + self.norm_lfs(fad * attention)


class F3Net(nn.Module):
    """float32 RGB [B, 3, px, px], 0..1 → float32 logits [B, K]. xceptions: timm's, headless, one a stream."""

    stages: Any

    def __init__(self, classes: int, px: int, *xceptions: Any) -> None:
        super().__init__()
        self.fad, self.lfs = Decomposition(px), LocalStatistics()
        streams = []
        bands = 3 * (len(FAD_EDGES) - 1), len(LFS_EDGES) - 1
        for xception, channels, stride in zip(xceptions, bands, (2, 1), strict=True):
            stem, *rest = xception.children()
            first = nn.Conv2d(channels, stem.out_channels, 3, stride, 2 - stride, bias=False)
            first.weight.data = stem.weight.data.repeat(1, channels // 3, 1, 1)
            # Up to block 7, up to block 12, and all else.
            parts = [first, *rest[:12]], rest[12:17], rest[17:]
            streams.append([nn.Sequential(*part) for part in parts])
        self.stages = nn.ModuleList(nn.ModuleList(pair) for pair in zip(*streams, strict=True))
        self.mixes = nn.ModuleList([MixBlock(728), MixBlock(1024)])
        self.head = nn.Linear(sum(xception.num_features for xception in xceptions), classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return logits; the transforms are in full precision, in half of which small traces drown."""
        with torch.autocast(pictures.device.type, enabled=False):
            maps = self.fad(pictures.float()), self.lfs(pictures.float())
        for number, (fad, lfs) in enumerate(self.stages):
            maps = fad(maps[0]), lfs(maps[1])
            if number < len(self.mixes):
                maps = self.mixes[number](*maps)
        logits: Tensor = self.head(torch.cat(maps, 1))
        return logits
