"""Backbones that timm lacks, and knows by their names once this is imported.

- resnet32_cifar: He et al. 2016, "Deep residual learning for image recognition", section 4.2, with n = 5, for
  images of 32 px: a convolution to 16 channels, three stages of five blocks of 16, 32 and 64 channels, and
  the mean over the image. Where channels double, the identity is every second pixel with channels of zeros
  behind (option A). 463,504 parameters without the head.
- bn_inception: Ioffe and Szegedy 2015, "Batch normalization: Accelerating deep network training by reducing
  internal covariate shift", appendix and figure 5, which TSN begins with. 4c and 4d have 608 channels as in
  the published networks, not the figure's 576. Those have a bias before each normalisation, which does
  nothing. No weights of it are published as safetensors.
- san19_patchwise: Zhao, Jia and Koltun 2020, "Exploring self-attention for image recognition", sections 3.2
  and 4 and table 1: the weights of a pixel's surroundings follow from all of these at once, and eight
  channels share them. Surroundings are mirrored beyond the picture's edges. Parts are named as in the
  authors' code, whose kernels for CUDA `unfold` stands for. 20.5 million parameters with a head of 1,000
  classes. Each block begins as the identity: Goyal et al. 2017, "Accurate, large minibatch SGD", section 5.1.
  Without it the first gradient is a hundred times larger, and no logit is finite after a step.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from timm.layers.conv_bn_act import ConvNormAct
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from updater.benchmark.networks.clips import sequence

__all__ = ["bn_inception", "resnet32_cifar", "san19_patchwise"]

_BLOCKS = 5
# Channels of 1 × 1, of 3 × 3 and of two 3 × 3, both after their reductions, and of the pool's projection.
_UNITS = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}
_STAGES = ((3, 3, 64), (3, 7, 256), (4, 7, 512), (6, 7, 1024), (3, 7, 2048))
"""blocks, side of the surroundings, and channels"""
_SHARED = 8
default_cfgs = generate_default_cfgs(
    {
        "resnet32_cifar": {
            "input_size": (3, 32, 32),
            "mean": (0.5071, 0.4867, 0.4408),
            "std": (0.2675, 0.2565, 0.2761),
            "interpolation": "bilinear",
        },
        "bn_inception": {"input_size": (3, 224, 224), "first_conv": "conv1.conv", "classifier": "head"},
        "san19_patchwise": {"first_conv": "conv_in", "classifier": "fc"},
    }
)


class _BasicBlock(nn.Module):
    """float32 [N, C, S, S] → [N, C, S, S], or [N, 2 C, S / 2, S / 2] where channels double."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.stride, self.more = (1 if channels == out else 2), out - channels
        self.body = nn.Sequential(
            ConvNormAct(channels, out, 3, self.stride), ConvNormAct(out, out, 3, apply_act=False)
        )

    def forward(self, images: Tensor) -> Tensor:
        kept = images[:, :, :: self.stride, :: self.stride]
        return F.relu(F.pad(kept, (0, 0, 0, 0, 0, self.more)) + self.body(images))


def _resnet32(in_chans: int = 3, **_: Any) -> nn.Module:
    """float32 [N, C, S, S] → float32 [N, 64]; S is 32 as published, and may be any of at least 4."""
    widths = [16, *(width for width in (16, 32, 64) for _block in range(_BLOCKS))]
    blocks = (_BasicBlock(*pair) for pair in pairwise(widths))
    features = nn.Sequential(ConvNormAct(in_chans, 16, 3), *blocks)
    network = sequence(features=features, pool=SelectAdaptivePool2d(flatten=True))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


class _Branches(nn.ModuleList):
    """Layers that see the same, their channels one after another."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self], 1)


def _halve() -> nn.Module:
    # What comes in is never below 0: a row and a column of zeros halve odd sides as convolutions do.
    return nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(3, 2, ceil_mode=True))


def _bn_inception(in_chans: int = 3, **_: Any) -> nn.Module:
    """float32 [N, C, S, S] → float32 [N, 1024]; S is 224 as published."""
    conv, width = ConvNormAct, 192
    layers = {
        "conv1": conv(in_chans, 64, 7, 2),
        "pool1": _halve(),
        "conv2_reduce": conv(64, 64),
        "conv2": conv(64, width, 3),
        "pool2": _halve(),
    }
    for name, (single, reduced, three, narrow, double, project) in _UNITS.items():
        stride = 1 if single else 2
        branches = [
            nn.Sequential(conv(width, reduced), conv(reduced, three, 3, stride)),
            nn.Sequential(conv(width, narrow), conv(narrow, double, 3), conv(double, double, 3, stride)),
        ]
        pool = nn.MaxPool2d(3, 1, 1) if name == "5b" else nn.AvgPool2d(3, 1, 1)
        more = [conv(width, single), nn.Sequential(pool, conv(width, project))] if single else [_halve()]
        layers[f"inception{name}"] = _Branches(branches + more)
        width = three + double + (single + project if single else width)
    return sequence(**layers, pool=SelectAdaptivePool2d(flatten=True))


class PatchwiseAttention(nn.Module):
    """float32 [B, C, H, W] → [B, out, H, W]."""

    def __init__(self, channels: int, related: int, out: int, side: int) -> None:
        super().__init__()
        self.side, places, weights = side, side**2, out // _SHARED
        self.conv1, self.conv2 = nn.Conv2d(channels, related, 1), nn.Conv2d(channels, related, 1)
        self.conv3 = nn.Conv2d(channels, out, 1)
        self.conv_w = nn.Sequential(
            nn.BatchNorm2d(related * (places + 1)),
            nn.ReLU(inplace=True),
            nn.Conv2d(related * (places + 1), weights, 1, bias=False),
            nn.BatchNorm2d(weights),
            nn.ReLU(inplace=True),
            nn.Conv2d(weights, places * weights, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        patches = torch.cat([self.conv1(x).flatten(2), self._around(self.conv2(x))], 1)
        weights: Tensor = self.conv_w(patches[:, :, None])
        return self.aggregate(self.conv3(x), weights)

    def aggregate(self, values: Tensor, weights: Tensor) -> Tensor:
        """Return each pixel's sum of its surroundings, [B, out, H, W].

        values: [B, out, H, W]. weights: [B, ..., H W] in the order channel, row, column; channels c and
        c + out / 8 share theirs.
        """
        shared = weights.view(len(values), 1, -1, self.side**2, weights.shape[-1])
        around = self._around(values).view(len(values), _SHARED, *shared.shape[2:])
        return (around * shared).sum(3).view_as(values)

    def _around(self, maps: Tensor) -> Tensor:
        return F.unfold(F.pad(maps, 4 * (self.side // 2,), mode="reflect"), self.side)


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        inner = channels // 4
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(inner)
        self.sam = PatchwiseAttention(channels, channels // 16, inner, side)
        self.conv = nn.Conv2d(inner, channels, 1)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.conv(F.relu(self.bn2(self.sam(F.relu(self.bn1(x))))))
        return x + inner


class SAN(nn.Module):
    """float32 [B, C, S, S] → logits [B, num_classes], of none features [B, 2048]; S is 128 or more."""

    def __init__(self, in_chans: int = 3, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv_in, self.bn_in = nn.Conv2d(in_chans, 64, 1, bias=False), nn.BatchNorm2d(64)
        before = 64
        for stage, (blocks, side, width) in enumerate(_STAGES):
            self.add_module(f"conv{stage}", nn.Conv2d(before, width, 1, bias=False))
            self.add_module(f"bn{stage}", nn.BatchNorm2d(width))
            self.add_module(
                f"layer{stage}", nn.Sequential(*(_Bottleneck(width, side) for _ in range(blocks)))
            )
            before = width
        self.fc = nn.Linear(before, num_classes) if num_classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn_in(self.conv_in(x)))
        for stage in range(len(_STAGES)):
            conv, bn, layer = (getattr(self, f"{part}{stage}") for part in ("conv", "bn", "layer"))
            x = F.relu(bn(layer(conv(F.max_pool2d(x, 2)))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


@register_model
def resnet32_cifar(pretrained: bool = False, **options: Any) -> nn.Module:
    return build_model_with_cfg(_resnet32, "resnet32_cifar", pretrained, **options)


@register_model
def bn_inception(pretrained: bool = False, **options: Any) -> nn.Module:
    return build_model_with_cfg(_bn_inception, "bn_inception", pretrained, **options)


@register_model
def san19_patchwise(pretrained: bool = False, **options: Any) -> nn.Module:
    """Return the network. Raises RuntimeError where weights of timm's are wanted: it has none."""
    network: nn.Module = build_model_with_cfg(SAN, "san19_patchwise", pretrained, **options)
    return network
