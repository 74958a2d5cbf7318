"""ResNet-32 for images of 32 px, which timm lacks: known to it by the name resnet32_cifar.

He et al. 2016, "Deep residual learning for image recognition", section 4.2, with n = 5: a convolution to 16
channels, three stages of five blocks of 16, 32 and 64 channels, and the mean over the image. Where channels
double, the identity is every second pixel with channels of zeros behind (option A). 463,504 parameters
without the head.
"""

from typing import Any

import torch.nn.functional as F
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

__all__ = ["resnet32_cifar"]

_BLOCKS = 5
default_cfgs = generate_default_cfgs(
    {
        "resnet32_cifar": {
            "input_size": (3, 32, 32),
            "mean": (0.5071, 0.4867, 0.4408),
            "std": (0.2675, 0.2565, 0.2761),
            "interpolation": "bilinear",
        }
    }
)


class _BasicBlock(nn.Module):
    """float32 [N, C, S, S] → [N, C, S, S], or [N, 2 C, S / 2, S / 2] where channels double."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.stride, self.more = (1 if channels == out else 2), out - channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, self.stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, images: Tensor) -> Tensor:
        kept = images[:, :, :: self.stride, :: self.stride]
        return F.relu(F.pad(kept, (0, 0, 0, 0, 0, self.more)) + self.body(images))


class ResNet32(nn.Module):
    """float32 [N, C, S, S] → float32 [N, 64]; S is 32 as published, and may be any of at least 4."""

    def __init__(self, in_chans: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(in_chans, 16, 3, 1, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
        ]
        channels = 16
        for out in (16, 32, 64):
            for _ in range(_BLOCKS):
                layers.append(_BasicBlock(channels, out))
                channels = out
        self.features = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean over the image of the last block's output."""
        features: Tensor = self.features(images)
        return features.mean((2, 3))


@register_model
def resnet32_cifar(pretrained: bool = False, in_chans: int = 3, num_classes: int = 0, **_: Any) -> ResNet32:
    """Return ResNet-32 without a head. Raises RuntimeError for a head, and for weights: it has none."""
    if pretrained or num_classes:
        raise RuntimeError("resnet32_cifar has neither weights nor a head of its own")
    return ResNet32(in_chans)
