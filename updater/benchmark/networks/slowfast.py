"""SlowFast, its slow pathway by itself, and the ResNet-50 over space and time that both are made of.

Feichtenhofer et al. 2019, "SlowFast networks for video recognition", sections 3 and 3.1 and table 1.

- SlowFast: a pathway of many channels on few frames, and one of few channels on all of them. alpha is how
  many times more frames the fast pathway sees, beta its share of the channels. After the stem and each stage
  but the last, a convolution of 5 frames with stride alpha brings the fast channels, doubled, to the slow
  pathway. ForgeryNet's has alpha 4, beta 1/8 and no non-local blocks.
- Slow-only: kernels of three frames in the last two stages alone, and no stride in time.
- The stages are He et al. 2016, "Deep residual learning for image recognition", with kernels in time.
"""

import torch
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


_SLOW_TIMES, _FAST_TIMES = (1, 1, 3, 3), (3, 3, 3, 3)
_FUSED_FRAMES, _FUSED_TIMES = 5, 2


class SlowFast(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]. T is a multiple of alpha."""

    def __init__(self, classes: int, alpha: int = 4, inverse_beta: int = 8) -> None:
        super().__init__()
        self.alpha = alpha
        slow, fast, width = 64, 64 // inverse_beta, 64
        self.slow_stem, self.fast_stem = Stem(slow, time=1), Stem(fast, time=5)
        self.slow_stages, self.fast_stages = nn.ModuleList(), nn.ModuleList()
        self.lateral = nn.ModuleList()
        times = zip(BLOCKS_50, _SLOW_TIMES, _FAST_TIMES, strict=True)
        for number, (blocks, slow_time, fast_time) in enumerate(times):
            stride = 1 if number == 0 else 2
            self.lateral.append(convolution(fast, _FUSED_TIMES * fast, (_FUSED_FRAMES, 1, 1), (alpha, 1, 1)))
            into = slow + _FUSED_TIMES * fast
            self.slow_stages.append(stage(into, width, blocks, slow_time, stride))
            self.fast_stages.append(stage(fast, width // inverse_beta, blocks, fast_time, stride))
            slow, fast, width = EXPANSION * width, EXPANSION * width // inverse_beta, 2 * width
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(slow + fast, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes."""
        logits: Tensor = self.head(self.dropout(self.features(clips).mean(2)))
        return logits

    def features(self, clips: Tensor) -> Tensor:
        """Return [B, C, T / alpha]: both pathways' last channels, the fast one's a mean over its frames."""
        slow, fast = self.slow_stem(clips[:, :, :: self.alpha]), self.fast_stem(clips)
        for lateral, slow_stage, fast_stage in zip(
            self.lateral, self.slow_stages, self.fast_stages, strict=True
        ):
            across = F.relu(lateral(fast))
            slow, fast = slow_stage(torch.cat([slow, across], 1)), fast_stage(fast)
        own, other = slow.mean((3, 4)), fast.mean((3, 4))
        return torch.cat([own, F.adaptive_avg_pool1d(other, own.shape[2])], 1)


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
