"""Simulated generators: pictures made anew by a random decoder or a small autoencoder, each draw a family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from updater.filters import feathered_ellipse
from updater.outliers.random_decoder import random_decoder

MASKED_SHARE = 0.25
LEARNT_SHARE = 0.4
_CELL_PX, _MOST_GAIN = 8, 3.0


@dataclass(frozen=True)
class SimulatedGenerator:
    """One draw: it does the same to every picture, whole or behind one mask."""

    make: Callable[[Tensor], Tensor]
    multiple: int
    """what `make` takes the sides of a picture in multiples of"""
    put_back: float
    """how much of what was lost comes back"""
    contrast: float
    """of the detail, as a share of the picture's own"""
    mask: Tensor | None
    """float32 [1, H, W] in 0..1: where the generator was at work"""

    def __call__(self, pictures: Tensor) -> Tensor:
        """float32 [N, 3, H, W] in 0..255 → the same, generated."""
        height, width = pictures.shape[2:]
        more = (-height % self.multiple, -width % self.multiple)
        padded = F.pad(pictures, (0, more[1], 0, more[0]), mode="replicate")
        made = self.make(padded)[:, :, :height, :width]
        made = made + self.put_back * (pictures - made)
        coarse, detail = _coarse(pictures), made - _coarse(made)
        own = (pictures - coarse).square().mean((1, 2, 3), keepdim=True)
        power = detail.square().mean((1, 2, 3), keepdim=True).clamp_min(1e-3)
        made = coarse + self.contrast * torch.sqrt(own / power).clamp_max(_MOST_GAIN) * detail
        if self.mask is not None:
            made = pictures + self.mask * (made - pictures)
        return made.clamp(0, 255)


def _coarse(pictures: Tensor) -> Tensor:
    """What a generator has right: brightness and colour from place to place."""
    small = F.avg_pool2d(pictures, _CELL_PX, ceil_mode=True, count_include_pad=False)
    return F.interpolate(small, size=pictures.shape[2:], mode="bilinear", align_corners=False)


def simulated_generator(
    rng: np.random.Generator,
    autoencoders: Sequence[Callable[[Tensor], Tensor]],
    side_px: int,
    device: torch.device,
) -> SimulatedGenerator:
    """Draw a generator for pictures of one side: a new random decoder, or behind one an autoencoder."""
    decoder = random_decoder(rng, device)
    make: Callable[[Tensor], Tensor] = decoder
    multiple, put_back = decoder.multiple, 0.0
    if autoencoders and rng.random() < LEARNT_SHARE:
        learnt = autoencoders[int(rng.integers(len(autoencoders)))]
        make, multiple, put_back = learnt, 4, rng.uniform(0, 0.6)
    mask = None
    if rng.random() < MASKED_SHARE:
        ellipse = feathered_ellipse(rng, side_px, side_px, (0.4, 0.8), rng.uniform(1, 10))
        mask = torch.from_numpy(ellipse).to(device).permute(2, 0, 1)
    return SimulatedGenerator(make, multiple, put_back, rng.uniform(0.8, 1.1), mask)
