"""ResNet-50 over space and time, as SlowFast's pathways and I3D have it: its stages, cut to what each needs.

He et al. 2016, "Deep residual learning for image recognition", with the kernels in time of Feichtenhofer et
al. 2019, "SlowFast networks for video recognition", table 1.
"""

from torch import Tensor, nn
from torch.nn import functional as F

BLOCKS_50 = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """float32 [B, C, T, H, W] → [B, 4 · width, T, H', W']: kernels (time, 1, 1), (1, 3, 3) and (1, 1, 1)."""

    def __init__(self, inputs: int, width: int, time: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.a = convolution(inputs, width, (time, 1, 1))
        self.b = convolution(width, width, (1, 3, 3), (1, stride, stride))
        self.c = convolution(width, outputs, (1, 1, 1))
        self.past = None
        if stride > 1 or inputs != outputs:
            self.past = convolution(inputs, outputs, (1, 1, 1), (1, stride, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block makes of x."""
        y: Tensor = self.c(F.relu(self.b(F.relu(self.a(x)))))
        return F.relu(y + (x if self.past is None else self.past(x)))


def convolution(
    inputs: int,
    outputs: int,
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int] = (1, 1, 1),
) -> nn.Sequential:
    """Return a convolution that keeps the size but for its stride, and batch normalisation."""
    padding = (kernel[0] // 2, kernel[1] // 2, kernel[2] // 2)
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm3d(outputs)
    )


class Stem(nn.Module):
    """float32 [B, 3, T, S, S] → [B, width, T, S/4, S/4]: a kernel of (time, 7, 7), and a maximum."""

    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.first = convolution(3, width, (time, 7, 7), (1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the stem makes of frames."""
        return F.max_pool3d(F.relu(self.first(x)), (1, 3, 3), (1, 2, 2), (0, 1, 1))


def stage(inputs: int, width: int, blocks: int, time: int, stride: int) -> nn.Sequential:
    """Return a stage of blocks, of which the first takes the stride."""
    made = [Bottleneck(inputs, width, time, stride)]
    made += [Bottleneck(EXPANSION * width, width, time, 1) for _ in range(blocks - 1)]
    return nn.Sequential(*made)
