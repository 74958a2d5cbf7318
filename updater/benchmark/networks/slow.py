"""Slow-only: SlowFast's slow pathway by itself.

Feichtenhofer et al. 2019, "SlowFast networks for video recognition", section 3.1 and table 1: ResNet-50, with
kernels of three frames in its last two stages alone, and no stride in time.
"""

from torch import Tensor, nn

from updater.benchmark.networks.residual3d import BLOCKS_50, EXPANSION, Stem, stage

_TIMES = (1, 1, 3, 3)


class Slow(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        inputs, width = 64, 64
        self.stem = Stem(inputs, time=1)
        stages = []
        for number, (blocks, time) in enumerate(zip(BLOCKS_50, _TIMES, strict=True)):
            stages.append(stage(inputs, width, blocks, time, stride=1 if number == 0 else 2))
            inputs, width = EXPANSION * width, 2 * width
        self.stages = nn.Sequential(*stages)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(inputs, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes."""
        features = self.stages(self.stem(clips)).mean((2, 3, 4))
        logits: Tensor = self.head(self.dropout(features))
        return logits
