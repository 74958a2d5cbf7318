"""Random decoders: networks drawn at random whose output is close to the picture that went in.

What a generator leaves behind comes from how it goes from a small grid to a large one: by which up-sampler,
kernel, depth and activation. A draw has all of these at random. It takes a picture apart into a pyramid, and
builds it up again level by level. At each level it gets back part of the detail that the level has; the
finest detail is mostly made by the decoder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Array = Callable[[Tensor], Tensor]

_GREY = 128.0
_UPSAMPLERS = ("nearest", "bilinear", "bicubic", "transposed", "shuffled")
ACTIVATIONS: dict[str, Array] = {
    "relu": F.relu,
    "leaky": lambda values: F.leaky_relu(values, 0.2),
    "tanh": torch.tanh,
    "swish": F.silu,
}


class Layer(NamedTuple):
    """Colours over C channels of both signs, a kernel near identity on each, an activation, and back."""

    spread: Tensor
    """float32 [C, 3], orthonormal columns"""
    kernels: Tensor
    """float32 [2C, 1, k, k]"""
    bias: Tensor
    """float32 [2C, 1, 1], levels"""
    activation: str
    reach: float
    """levels that the activation sees as 1"""

    def apply(self, levels: Tensor) -> Tensor:
        """float32 [N, 3, H, W] → the same, at the contrast that it had."""
        centred = levels - _GREY
        spread = torch.einsum("kc,nchw->nkhw", self.spread, centred)
        signed = torch.cat([spread, -spread], 1)
        around = self.kernels.shape[2] // 2
        mixed = F.conv2d(
            F.pad(signed, (around,) * 4, mode="replicate"), self.kernels, groups=len(self.kernels)
        )
        active = ACTIVATIONS[self.activation]((mixed + self.bias) / self.reach)
        plus, minus = active.chunk(2, 1)
        back = torch.einsum("kc,nkhw->nchw", self.spread, plus - minus)
        gain = (back * centred).sum((1, 2, 3), keepdim=True) / back.square().sum(
            (1, 2, 3), keepdim=True
        ).clamp_min(1e-6)
        return _GREY + gain * back


class Level(NamedTuple):
    """One doubling: an up-sampler, how much of the level's own detail comes back, grain, and layers."""

    upsampler: str
    kernel: Tensor
    """float32 [k, k], summing to 4: of the transposed convolution"""
    phases: Tensor
    """float32 [4, 1, 3, 3]: what each of the four shuffled pixels adds to the bilinear one"""
    detail: float
    grain: float
    """standard deviation of the noise that is put in, levels"""
    layers: tuple[Layer, ...]

    def double(self, levels: Tensor) -> Tensor:
        """float32 [N, 3, H, W] → [N, 3, 2H, 2W]."""
        n, channels, height, width = levels.shape
        if self.upsampler == "nearest":
            return F.interpolate(levels, scale_factor=2, mode="nearest")
        if self.upsampler == "transposed":
            size = self.kernel.shape[0]
            kernels = self.kernel.expand(channels, 1, size, size)
            padded = F.pad(levels, (1,) * 4, mode="replicate")
            whole = F.conv_transpose2d(padded, kernels, stride=2, groups=channels)
            first = 2 + (size - 2) // 2
            return whole[:, :, first : first + 2 * height, first : first + 2 * width]
        mode = "bicubic" if self.upsampler == "bicubic" else "bilinear"
        doubled = F.interpolate(levels, scale_factor=2, mode=mode, align_corners=False)
        if self.upsampler != "shuffled":
            return doubled
        alone = F.pad(levels.reshape(n * channels, 1, height, width), (1,) * 4, mode="replicate")
        return doubled + F.pixel_shuffle(F.conv2d(alone, self.phases), 2).reshape(doubled.shape)


@dataclass(frozen=True)
class RandomDecoder:
    """One draw, on one device: the same draw does the same to every picture."""

    levels: tuple[Level, ...]
    """from the coarsest to the finest"""
    seed: int
    """of the grain"""

    @property
    def multiple(self) -> int:
        """What a picture's sides are a multiple of, pixels."""
        return int(2 ** len(self.levels))

    def __call__(self, pictures: Tensor) -> Tensor:
        """float32 [N, 3, H, W] in 0..255 → the same made by the decoder, not rounded."""
        random = torch.Generator().manual_seed(self.seed)
        pyramid = [pictures]
        for _ in self.levels:
            pyramid.append(F.avg_pool2d(pyramid[-1], 2))
        made = pyramid.pop()
        for level in self.levels:
            coarse = F.interpolate(F.avg_pool2d(pyramid[-1], 2), scale_factor=2, mode="bilinear")
            made = level.double(made) + level.detail * (pyramid[-1] - coarse)
            if level.grain:
                # On the CPU, whose generator draws the same on every machine.
                made = made + level.grain * torch.randn(made.shape[1:], generator=random).to(made.device)
            for layer in level.layers:
                made = layer.apply(made)
            pyramid.pop()
        return made.clamp(0, 255)


def random_decoder(rng: np.random.Generator, device: torch.device) -> RandomDecoder:
    """Draw a decoder of one to three doublings, of random up-samplers, kernels, layers and activations."""
    depth = int(rng.choice([1, 2, 3], p=[0.35, 0.4, 0.25]))
    levels = tuple(_level(rng, device, finest=number == depth - 1) for number in range(depth))
    return RandomDecoder(levels, int(rng.integers(2**31)))


def _level(rng: np.random.Generator, device: torch.device, *, finest: bool) -> Level:
    size = int(rng.integers(2, 6))
    window = np.hanning(size + 2)[1:-1]
    kernel = np.outer(window, window) * np.exp(rng.normal(0, rng.uniform(0.05, 0.6), (size, size)))
    for row in range(2):
        for column in range(2):
            # What each of the four new pixels sums to: nearly 1, and the rest is the checkerboard.
            kernel[row::2, column::2] *= (1 + rng.normal(0, 0.01)) / kernel[row::2, column::2].sum()
    return Level(
        upsampler=str(rng.choice(_UPSAMPLERS)),
        kernel=_tensor(kernel, device),
        phases=_tensor(rng.normal(0, rng.uniform(0.003, 0.03), (4, 1, 3, 3)), device),
        detail=rng.uniform(0, 0.9) if finest else rng.uniform(0.4, 1),
        grain=rng.uniform(0, 3) if rng.random() < 0.4 else 0.0,
        layers=tuple(_layer(rng, device) for _ in range(int(rng.integers(0, 3)))),
    )


def _layer(rng: np.random.Generator, device: torch.device) -> Layer:
    channels, size = int(rng.choice([4, 6, 8])), int(rng.choice([3, 5]))
    kernels = rng.normal(0, rng.uniform(0.02, 0.15) / size, (2 * channels, 1, size, size))
    kernels[:, :, size // 2, size // 2] += 1
    return Layer(
        spread=_tensor(np.linalg.qr(rng.normal(size=(channels, 3)))[0], device),
        kernels=_tensor(kernels, device),
        bias=_tensor(rng.normal(0, 10, (2 * channels, 1, 1)), device),
        activation=str(rng.choice(list(ACTIVATIONS))),
        reach=rng.uniform(60, 200),
    )


def _tensor(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(device)
