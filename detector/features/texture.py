"""Features of an image network's first stages, and all features of a crop together."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.features.forensics import ForensicFeatures
from detector.features.texture_weights import BLOCKS, Convolution, texture_weights
from detector.release.manifest import FEATURE_WIDTH, FORENSIC_WIDTH

_MIDDLE, _SPREAD = 127.0, 128.0
_FLOOR = 1e-8


class TextureFeatures(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → float32 [N, 320], for a fixed S.

    Mean and deviation over the plane of each channel at the end of EfficientNet-Lite0's first four stages
    (Tan and Le 2019, "EfficientNet"), frozen, at native resolution.
    """

    weights: Tensor

    def __init__(self) -> None:
        """Raises ModuleNotFoundError and ValueError as `texture_weights` does."""
        super().__init__()
        self.register_buffer("weights", torch.from_numpy(texture_weights()), persistent=False)
        self.width = FEATURE_WIDTH - FORENSIC_WIDTH

    def forward(self, crops: Tensor) -> Tensor:
        """Return the means and then the deviations of each stage."""
        planes, start, statistics = (crops - _MIDDLE) / _SPREAD, 0, []
        for block in BLOCKS:
            before = planes
            for convolution in block.convolutions:
                planes, start = self._convolve(planes, convolution, start)
            if before.shape[1:] == planes.shape[1:]:
                planes = planes + before
            if block.ends_stage:
                flat = planes.flatten(2)
                mean = flat.mean(2, keepdim=True)
                deviation = torch.sqrt((flat - mean).square().mean(2) + _FLOOR)
                statistics += [mean[:, :, 0], deviation]
        return torch.cat(statistics, 1)

    def _convolve(self, planes: Tensor, convolution: Convolution, start: int) -> tuple[Tensor, int]:
        out, inputs, kernel, _ = convolution.shape
        bias_at = start + out * inputs * kernel**2
        end = bias_at + out
        weight = self.weights[start:bias_at].reshape(convolution.shape)
        groups = int(planes.shape[1]) // inputs
        bias = self.weights[bias_at:end]
        # Of a kernel with an even side the first row and column are 0, as TensorFlow pads.
        padding = (kernel - 1) // 2
        planes = F.conv2d(planes, weight, bias, convolution.stride, padding, groups=groups)
        return planes.clamp(0, 6) if convolution.is_clipped else planes, end


class CropFeatures(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → float32 [N, FEATURE_WIDTH]: forensic features, then texture."""

    def __init__(self, side: int) -> None:
        """Raises ValueError for a side that has no forensic features."""
        super().__init__()
        self.forensics, self.texture = ForensicFeatures(side), TextureFeatures()
        self.width = self.forensics.width + self.texture.width

    def forward(self, crops: Tensor) -> Tensor:
        # A GPU's 10 bits are too few for what a CPU is to find again.
        with torch.backends.cudnn.flags(allow_tf32=False):
            return torch.cat([self.forensics(crops), self.texture(crops)], 1)
