"""SAN19-patchwise, which timm lacks: known to it by the name san19_patchwise.

Zhao, Jia and Koltun 2020, "Exploring self-attention for image recognition", sections 3.2 and 4 and table 1:
the weights of a pixel's surroundings follow from all of these at once, and eight channels share them.
Surroundings are mirrored beyond the picture's edges. Parts are named as in the authors' code, whose kernels
for CUDA `unfold` stands for. 20.5 million parameters with a head of 1,000 classes.
"""

from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["san19_patchwise"]

_STAGES = ((3, 3, 64), (3, 7, 256), (4, 7, 512), (6, 7, 1024), (3, 7, 2048))
"""blocks, side of the surroundings, and channels"""
_SHARED = 8
default_cfgs = generate_default_cfgs({"san19_patchwise": {"first_conv": "conv_in", "classifier": "fc"}})


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
def san19_patchwise(pretrained: bool = False, **options: Any) -> nn.Module:
    """Return the network. Raises RuntimeError where weights of timm's are wanted: it has none."""
    network: nn.Module = build_model_with_cfg(SAN, "san19_patchwise", pretrained, **options)
    return network
