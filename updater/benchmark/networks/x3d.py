"""X3D-M: a small network of convolutions by channel, grown in depth, width and frames one at a time.

Feichtenhofer 2020, "X3D: Expanding architectures for efficient video recognition", table 1 and section 3: a
stem of (1, 3, 3) and then, by channel, (5, 1, 1); blocks of 1 × 1 × 1, of 3 × 3 × 3 by channel and of
1 × 1 × 1, the middle wider by 2.25; squeeze and excitation of a sixteenth in every second block; Swish. The
widths of M are 24, 48, 96 and 192, its depths 3, 5, 11 and 7.
"""

from torch import Tensor, nn
from torch.nn import functional as F

_DEPTHS, _WIDTHS = (3, 5, 11, 7), (24, 48, 96, 192)
_WIDER, _SQUEEZED = 2.25, 1 / 16
_LAST, _HEAD = 432, 2048
_EIGHT = 8


def _to_eight(width: float) -> int:
    """Round to a multiple of 8, but not to less than nine tenths of it."""
    nearest = max(_EIGHT, int(width + _EIGHT / 2) // _EIGHT * _EIGHT)
    return nearest if nearest >= 0.9 * width else nearest + _EIGHT


class _Excited(nn.Module):
    """Channels weighed by what they are on the mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = _to_eight(width * _SQUEEZED)
        self.down, self.up = nn.Conv3d(width, squeezed, 1), nn.Conv3d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, weighed."""
        share: Tensor = self.up(F.relu(self.down(x.mean((2, 3, 4), keepdim=True)))).sigmoid()
        return x * share


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, *, excited: bool) -> None:
        super().__init__()
        wide, steps = int(_WIDER * outputs), (1, stride, stride)
        self.a = nn.Sequential(nn.Conv3d(inputs, wide, 1, bias=False), nn.BatchNorm3d(wide))
        self.b = nn.Sequential(
            nn.Conv3d(wide, wide, 3, steps, 1, groups=wide, bias=False),
            nn.BatchNorm3d(wide),
            _Excited(wide) if excited else nn.Identity(),
        )
        self.c = nn.Sequential(nn.Conv3d(wide, outputs, 1, bias=False), nn.BatchNorm3d(outputs))
        self.past: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            own = nn.Conv3d(inputs, outputs, 1, steps, bias=False)
            self.past = nn.Sequential(own, nn.BatchNorm3d(outputs)) if inputs != outputs else own

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block makes of x."""
        y = self.c(F.silu(self.b(F.relu(self.a(x)))))
        return F.relu(self.past(x) + y)


class X3D(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        width = _WIDTHS[0]
        self.stem = nn.Sequential(
            nn.Conv3d(3, width, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
            nn.Conv3d(width, width, (5, 1, 1), 1, (2, 0, 0), groups=width, bias=False),
            nn.BatchNorm3d(width),
            nn.ReLU(),
        )
        blocks = []
        for depth, outputs in zip(_DEPTHS, _WIDTHS, strict=True):
            for number in range(depth):
                blocks.append(_Block(width, outputs, stride=1 if number else 2, excited=number % 2 == 0))
                width = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(nn.Conv3d(width, _LAST, 1, bias=False), nn.BatchNorm3d(_LAST), nn.ReLU())
        self.wide = nn.Conv3d(_LAST, _HEAD, 1, bias=False)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(_HEAD, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes."""
        features = self.last(self.blocks(self.stem(clips))).mean((2, 3, 4), keepdim=True)
        logits: Tensor = self.head(self.dropout(F.relu(self.wide(features)).flatten(1)))
        return logits
