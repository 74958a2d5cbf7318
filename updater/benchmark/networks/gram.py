"""Gram-Net: what channels do together, at several depths, beside what a network sees at its end.

Liu, Qi and Torr 2020, "Global texture enhancement for fake face detection in the wild", section 4: a Gram
block is a convolution to a few channels, the products of all pairs of them, and two convolutions on that
matrix. As ForgeryNet has it, there is one before three of the stages.
"""

from typing import Any

import torch
from torch import Tensor, nn

CHANNELS, WIDTH, BLOCKS = 16, 32, 3


class _GramBlock(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.align = nn.Sequential(
            nn.Conv2d(inputs, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU()
        )
        self.texture = nn.Sequential(
            nn.Conv2d(1, WIDTH, 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """float32 [B, C, H, W] → [B, WIDTH]."""
        own = self.align(x).flatten(2)
        gram = own @ own.transpose(1, 2) / own.shape[2]
        texture: Tensor = self.texture(gram[:, None])
        return texture.mean((2, 3))


class GramNet(nn.Module):
    """float32 RGB [B, 3, S, S], 0..1 → float32 logits [B, K]. features: timm's model, as `features_only`."""

    def __init__(self, features: nn.Module, classes: int) -> None:
        super().__init__()
        self.features = features
        info: Any = features.feature_info
        widths: list[int] = info.channels()
        self.blocks = nn.ModuleList([_GramBlock(width) for width in widths[:BLOCKS]])
        self.head = nn.Linear(widths[-1] + WIDTH * len(self.blocks), classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits of the classes."""
        levels = self.features(pictures)
        textures = [block(level) for block, level in zip(self.blocks, levels, strict=False)]
        logits: Tensor = self.head(torch.cat([levels[-1].mean((2, 3)), *textures], 1))
        return logits
