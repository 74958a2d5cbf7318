"""The networks on clips of ForgeryNet's paper: SlowFast, its slow pathway by itself, TSM and X3D-M.

- SlowFast: Feichtenhofer et al. 2019, "SlowFast networks for video recognition", sections 3 and 3.1 and table
  1: a pathway of many channels on few frames, and one of few channels on all of them. alpha is how many times
  more frames the fast pathway sees, beta its share of the channels. After the stem and each stage but the
  last, a convolution of 5 frames with stride alpha brings the fast channels, doubled, to the slow pathway.
  ForgeryNet's has alpha 4, beta 1/8 and no non-local blocks. The stages are He et al. 2016, "Deep residual
  learning for image recognition", with kernels in time.
- Slow-only: kernels of three frames in the last two stages alone, and no stride in time.
- TSM: Lin, Gan and Han 2019, "TSM: Temporal shift module for efficient video understanding", section 3: a
  network on single frames. In each residual block an eighth of the channels is shifted each way before the
  first convolution; the answer is the mean over the frames.
- X3D-M: Feichtenhofer 2020, "X3D: Expanding architectures for efficient video recognition", table 1 and
  section 3: a stem of (1, 3, 3) and then, by channel, (5, 1, 1); blocks of 1 × 1 × 1, of 3 × 3 × 3 by channel
  and of 1 × 1 × 1, the middle wider by 2.25; squeeze and excitation of a sixteenth in every second block;
  Swish. The widths of M are 24, 48, 96 and 192, its depths 3, 5, 11 and 7.
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
        y: Tensor = self.c(F.relu(self.b(F.relu(self.a(x)))))
        return F.relu(y + (x if self.past is None else self.past(x)))


def convolution(
    inputs: int, outputs: int, kernel: tuple[int, int, int], stride: tuple[int, int, int] = (1, 1, 1)
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


class Slow(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        inputs, width = 64, 64
        self.stem = Stem(inputs, time=1)
        stages = []
        for number, (blocks, time) in enumerate(zip(BLOCKS_50, _SLOW_TIMES, strict=True)):
            stages.append(stage(inputs, width, blocks, time, stride=1 if number == 0 else 2))
            inputs, width = EXPANSION * width, 2 * width
        self.stages = nn.Sequential(*stages)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(inputs, classes)

    def forward(self, clips: Tensor) -> Tensor:
        features = self.stages(self.stem(clips)).mean((2, 3, 4))
        logits: Tensor = self.head(self.dropout(features))
        return logits


SHARE = 8
"""one of so many channels is shifted forward, and one back"""


class _Shifted(nn.Module):
    """A convolution on [B · T, C, H, W] that sees channels of neighbouring frames."""

    def __init__(self, convolution: nn.Module, clip: "TSM") -> None:
        super().__init__()
        self.convolution = convolution
        # In a list, so that the network is no part of its own part.
        self._clip = [clip]

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = self.convolution(shifted_in_time(x, self._clip[0].frames))
        return shifted


def shifted_in_time(x: Tensor, frames: int) -> Tensor:
    """Shift an eighth of the channels of [B · T, C, H, W] to the frame before, and an eighth to the next.

    Where there is no such frame, zeros come in.
    """
    clips = x.view(-1, frames, *x.shape[1:])
    fold = x.shape[1] // SHARE
    back = F.pad(clips[:, 1:, :fold], (0, 0, 0, 0, 0, 0, 0, 1))
    on = F.pad(clips[:, :-1, fold : 2 * fold], (0, 0, 0, 0, 0, 0, 1, 0))
    return torch.cat([back, on, clips[:, :, 2 * fold :]], 2).flatten(0, 1)


class TSM(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from torchvision.models import resnet50  # it takes seconds, and not every network needs it

        self.frames = 1
        self.backbone: nn.Module = resnet50(weights=None, num_classes=1)
        width = self.backbone.fc.in_features
        self.backbone.fc = nn.Identity()
        for number in range(1, 5):
            for block in getattr(self.backbone, f"layer{number}"):
                block.conv1 = _Shifted(block.conv1, self)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes, a mean over the frames."""
        self.frames = clips.shape[2]
        features = self.backbone(clips.transpose(1, 2).flatten(0, 1))
        frames: Tensor = self.head(self.dropout(features))
        return frames.view(len(clips), self.frames, -1).mean(1)


_DEPTHS, _WIDTHS = (3, 5, 11, 7), (24, 48, 96, 192)
_WIDER, _SQUEEZED = 2.25, 1 / 16
_LAST, _HEAD = 432, 2048
_EIGHT = 8


def _to_eight(width: float) -> int:
    """Round to a multiple of 8, but not to less than nine tenths of it."""
    nearest = max(_EIGHT, int(width + _EIGHT / 2) // _EIGHT * _EIGHT)
    return nearest if nearest >= 0.9 * width else nearest + _EIGHT


class _Excited(nn.Module):
    """Channels weighed by their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = _to_eight(width * _SQUEEZED)
        self.down, self.up = nn.Conv3d(width, squeezed, 1), nn.Conv3d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
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
        features = self.last(self.blocks(self.stem(clips))).mean((2, 3, 4), keepdim=True)
        logits: Tensor = self.head(self.dropout(F.relu(self.wide(features)).flatten(1)))
        return logits
