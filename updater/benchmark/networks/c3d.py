"""C3D: eight convolutions of 3 × 3 × 3 and two wide layers, on 16 frames of 112 px.

Tran et al. 2015, "Learning spatiotemporal features with 3D convolutional networks", section 3.2 and figure
3. Other sizes of clips are brought to its last grid of 1 × 4 × 4 by a mean.
"""

from torch import Tensor, nn

_LAYERS: tuple[tuple[int, ...], ...] = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_GRID, _WIDE = (1, 4, 4), 4096
PX, FRAMES = 112, 16


class C3D(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for number, widths in enumerate(_LAYERS):
            for width in widths:
                layers += [nn.Conv3d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
            # The first leaves the frames apart; the last has a row and a column of padding.
            kernel = (1, 2, 2) if number == 0 else (2, 2, 2)
            padding = (0, 1, 1) if number == len(_LAYERS) - 1 else (0, 0, 0)
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
        """Return the logits of the classes."""
        logits: Tensor = self.head(self.layers(clips).flatten(1))
        return logits
