"""The networks on whole clips of DeeperForensics' paper: C3D and I3D.

- C3D: Tran et al. 2015, "Learning spatiotemporal features with 3D convolutional networks", section 3.2 and
  figure 3: eight convolutions of 3 × 3 × 3 and two wide layers, on 16 frames of 112 px. Other sizes of clips
  are brought to its last grid of 1 × 4 × 4 by a mean.
- I3D: Carreira and Zisserman 2017, "Quo vadis, action recognition?", section 2.4 and figure 3: Inception with
  batch normalisation, its kernels made cubes, on 64 frames of 224 px; the widths of each block are those of
  Szegedy et al. 2015, "Going deeper with convolutions", table 1.
"""

import torch
from torch import Tensor, nn

_C3D_LAYERS: tuple[tuple[int, ...], ...] = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_GRID, _WIDE = (1, 4, 4), 4096
C3D_PX, C3D_FRAMES = 112, 16


class C3D(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for number, widths in enumerate(_C3D_LAYERS):
            for width in widths:
                layers += [nn.Conv3d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
            # The first leaves the frames apart; the last has a row and a column of padding.
            kernel = (1, 2, 2) if number == 0 else (2, 2, 2)
            padding = (0, 1, 1) if number == len(_C3D_LAYERS) - 1 else (0, 0, 0)
            layers.append(nn.MaxPool3d(kernel, padding=padding, ceil_mode=True))
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(_GRID))
        self.head = nn.Sequential(
            nn.Linear(inputs * _GRID[0] * _GRID[1] * _GRID[2], _WIDE),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(_WIDE, _WIDE),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(_WIDE, classes),
        )

    def forward(self, clips: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(clips).flatten(1))
        return logits


I3D_FRAMES = 64

# 1 × 1; reduced and 3 × 3; reduced and 3 × 3; after the pool.
_I3D_WIDTHS: tuple[tuple[tuple[int, int, int, int, int, int], ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm3d(outputs, eps=1e-3),
        nn.ReLU(),
    )


class _Inception(nn.Module):
    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        plain, reduced, large, narrowed, small, pooled = widths
        self.ways = nn.ModuleList(
            [
                _convolution(inputs, plain, 1),
                nn.Sequential(_convolution(inputs, reduced, 1), _convolution(reduced, large, 3)),
                nn.Sequential(_convolution(inputs, narrowed, 1), _convolution(narrowed, small, 3)),
                nn.Sequential(nn.MaxPool3d(3, 1, 1), _convolution(inputs, pooled, 1)),
            ]
        )
        self.width = plain + large + small + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


class I3D(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            _convolution(3, 64, 7, 2),
            nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
            _convolution(64, 64, 1),
            _convolution(64, 192, 3),
            nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        ]
        width = 192
        for number, blocks in enumerate(_I3D_WIDTHS):
            if number:
                kernel = 3 if number == 1 else 2
                layers.append(nn.MaxPool3d(kernel, 2, kernel // 2 if kernel == 3 else 0, ceil_mode=True))
            for widths in blocks:
                layers.append(block := _Inception(width, widths))
                width = block.width
        self.layers = nn.Sequential(*layers)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.layers(clips).mean((2, 3, 4))))
        return logits
