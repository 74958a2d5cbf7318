"""The networks on whole clips of two papers, ForgeryNet's first.

Parts of SlowFast, Slow and X3D are named as in PyTorchVideo's published architectures.

- SlowFast: Feichtenhofer et al. 2019, "SlowFast networks for video recognition", sections 3 and 3.1 and table
  1: a pathway of many channels on few frames, and one of few channels on all of them. alpha is how many times
  more frames the fast pathway sees, beta its share of the channels. After the stem and each stage but the
  last, a convolution of 5 frames with stride alpha brings the fast channels, doubled, to the slow pathway.
  The published weights have 7. ForgeryNet's has alpha 4, beta 1/8 and no non-local blocks. The stages are
  He et al. 2016, "Deep residual learning for image recognition", with kernels in time.
- Slow-only: kernels of three frames in the last two stages alone, and no stride in time.
- TSM: Lin, Gan and Han 2019, "TSM: Temporal shift module for efficient video understanding", section 3: a
  network on single frames. In each residual block an eighth of the channels is shifted each way before the
  first convolution; the answer is the mean over the frames.
- X3D-M: Feichtenhofer 2020, "X3D: Expanding architectures for efficient video recognition", table 1 and
  section 3: a stem of (1, 3, 3) and then, by channel, (5, 1, 1); blocks of 1 × 1 × 1, of 3 × 3 × 3 by channel
  and of 1 × 1 × 1, the middle wider by 2.25; squeeze and excitation of a sixteenth in every second block;
  Swish. The widths of M are 24, 48, 96 and 192, its depths 3, 5, 11 and 7.
- C3D: Tran et al. 2015, "Learning spatiotemporal features with 3D convolutional networks", section 3.2 and
  figure 3: eight convolutions of 3 × 3 × 3 and two wide layers, on 16 frames of 112 px. Other sizes of clips
  are brought to its last grid of 1 × 4 × 4 by a mean. Layers have the names of the figure.
- I3D: Carreira and Zisserman 2017, "Quo vadis, action recognition?", sections 2.4 and 2.4.1 and figure 3:
  Inception with batch normalisation, here torchvision's, its kernels made cubes, on 64 frames of 224 px. The
  first two maxima leave the frames apart.
"""

from collections import OrderedDict
from typing import Any

import torch
from timm.layers.helpers import make_divisible
from torch import Tensor, nn
from torch.nn import functional as F

_DEPTHS, _SLOW_TIMES, _FAST_TIMES = (3, 4, 6, 3), (1, 1, 3, 3), (3, 3, 3, 3)
_ALPHA, _FAST_SHARE = 4, 8
_X3D_DEPTHS, _X3D_WIDTHS, _X3D_LAST, _X3D_HEAD = (3, 5, 11, 7), (24, 48, 96, 192), 432, 2048
_C3D_LAYERS = {"1": 64, "2": 128, "3a": 256, "3b": 256, "4a": 512, "4b": 512, "5a": 512, "5b": 512}
_GRID, _WIDE = (1, 4, 4), 4096
C3D_PX, C3D_FRAMES = 112, 16
I3D_FRAMES = 64
SHARE = 8
"""one of so many channels is shifted forward, and one back"""


def sequence(**layers: nn.Module) -> nn.Sequential:
    """Return the layers one after the other, under their names."""
    return nn.Sequential(OrderedDict(layers))


def _convolution(inputs: int, outputs: int, time: int = 1, side: int = 1, **options: Any) -> nn.Conv3d:
    """Return a convolution that keeps the size but for its stride."""
    padding = (time // 2, side // 2, side // 2)
    return nn.Conv3d(inputs, outputs, (time, side, side), padding=padding, bias=False, **options)


class _Excited(nn.Module):
    """Channels weighed by their means; a sixteenth of them, to a multiple of 8, sums these up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = make_divisible(width / 16)  # type: ignore[no-untyped-call]  # timm's own
        self.block = nn.Sequential(
            nn.Conv3d(width, squeezed, 1), nn.ReLU(), nn.Conv3d(squeezed, width, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        excited: Tensor = x * self.block(x.mean((2, 3, 4), keepdim=True))
        return excited


class ResBlock(nn.Module):
    """float32 [B, C, T, H, W] → [B, outputs, T, H', W']: kernels (time, 1, 1), the middle, and (1, 1, 1).

    x3d: the middle is 3 × 3 × 3 by channel and begins with its excitation, if it has one; else 1 × 3 × 3.
    """

    def __init__(self, inputs: int, inner: int, outputs: int, time: int, stride: int, x3d: int = 0) -> None:
        super().__init__()
        strides, norm = (1, stride, stride), nn.BatchNorm3d
        changes = inputs != outputs
        past = _convolution(inputs, outputs, stride=strides) if changes or stride > 1 else nn.Identity()
        self.branch1_conv, self.branch1_norm = past, norm(outputs) if changes else nn.Identity()
        excited = nn.Sequential(norm(inner), _Excited(inner) if x3d > 1 else nn.Identity())
        self.branch2 = sequence(
            conv_a=_convolution(inputs, inner, time),
            norm_a=norm(inner),
            act_a=nn.ReLU(),
            conv_b=_convolution(inner, inner, 3 if x3d else 1, 3, stride=strides, groups=inner if x3d else 1),
            norm_b=excited if x3d else norm(inner),
            act_b=nn.SiLU() if x3d else nn.ReLU(),
            conv_c=_convolution(inner, outputs),
            norm_c=norm(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch1_norm(self.branch1_conv(x)) + self.branch2(x))


def _stem(width: int, time: int) -> nn.Module:
    """float32 [B, 3, T, S, S] → [B, width, T, S/4, S/4]: a kernel of (time, 7, 7), and a maximum."""
    return sequence(
        conv=_convolution(3, width, time, 7, stride=(1, 2, 2)),
        norm=nn.BatchNorm3d(width),
        activation=nn.ReLU(),
        pool=nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
    )


def _stage(inputs: int, width: int, number: int, time: int) -> nn.Module:
    blocks = [ResBlock(inputs, width, 4 * width, time, 2 if number else 1)]
    blocks += [ResBlock(4 * width, width, 4 * width, time, 1) for _ in range(_DEPTHS[number] - 1)]
    return sequence(res_blocks=nn.Sequential(*blocks))


class _Pathways(nn.Module):
    def __init__(self, slow: nn.Module, fast: nn.Module, fusion: nn.Module | None) -> None:
        super().__init__()
        self.multipathway_blocks, self.multipathway_fusion = nn.ModuleList([slow, fast]), fusion

    def forward(self, slow: Tensor, fast: Tensor) -> tuple[Tensor, Tensor]:
        own, fast = self.multipathway_blocks[0](slow), self.multipathway_blocks[1](fast)
        if self.multipathway_fusion is None:
            return own, fast
        return torch.cat([own, self.multipathway_fusion(fast)], 1), fast


class SlowFast(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]. fused: frames that the fusion sees."""

    def __init__(self, classes: int, fused: int = 5) -> None:
        super().__init__()

        def fusion(fast: int) -> nn.Module:
            across = _convolution(fast, 2 * fast, fused, stride=(_ALPHA, 1, 1))
            return sequence(conv_fast_to_slow=across, norm=nn.BatchNorm3d(2 * fast), activation=nn.ReLU())

        slow, fast = 64, 64 // _FAST_SHARE
        blocks: list[nn.Module] = [_Pathways(_stem(slow, 1), _stem(fast, 5), fusion(fast))]
        for number in range(4):
            width, into = 64 << number, slow + 2 * fast
            slow_stage = _stage(into, width, number, _SLOW_TIMES[number])
            fast_stage = _stage(fast, width // _FAST_SHARE, number, _FAST_TIMES[number])
            slow, fast = 4 * width, 4 * width // _FAST_SHARE
            blocks.append(_Pathways(slow_stage, fast_stage, fusion(fast) if number < 3 else None))
        head = sequence(dropout=nn.Dropout(0.5), proj=nn.Linear(slow + fast, classes))
        self.blocks = nn.ModuleList([*blocks, nn.Identity(), head])

    def forward(self, clips: Tensor) -> Tensor:
        slow, fast = clips[:, :, ::_ALPHA], clips
        for block in self.blocks[:-2]:
            slow, fast = block(slow, fast)
        # The fast pathway's frames are brought to those of the slow one, and the mean is over these.
        own, other = slow.mean((3, 4)), F.adaptive_avg_pool1d(fast.mean((3, 4)), slow.shape[2])
        logits: Tensor = self.blocks[-1](torch.cat([own, other], 1).mean(2))
        return logits


def slow_only(classes: int) -> nn.Module:
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""
    widths = (64, 256, 512, 1024)
    stages = [_stage(widths[number], 64 << number, number, _SLOW_TIMES[number]) for number in range(4)]
    pool = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten())
    head = sequence(pool=pool, dropout=nn.Dropout(0.5), proj=nn.Linear(2048, classes))
    return sequence(blocks=nn.Sequential(_stem(64, 1), *stages, head))


class TSM(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from torchvision.models import resnet50  # it takes seconds, and not every network needs it

        self.frames = 1
        self.backbone: nn.Module = resnet50(weights=None, num_classes=classes)
        self.backbone.fc = nn.Sequential(nn.Dropout(0.5), self.backbone.fc)
        for number in range(1, 5):
            for block in getattr(self.backbone, f"layer{number}"):
                block.conv1.register_forward_pre_hook(lambda _, x: shifted_in_time(x[0], self.frames))

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes, a mean over the frames."""
        self.frames = clips.shape[2]
        frames: Tensor = self.backbone(clips.transpose(1, 2).flatten(0, 1))
        return frames.view(len(clips), self.frames, -1).mean(1)


def shifted_in_time(x: Tensor, frames: int) -> Tensor:
    """Shift an eighth of the channels of [B · T, C, H, W] to the frame before, and an eighth to the next.

    Where there is no such frame, zeros come in.
    """
    clips = x.view(-1, frames, *x.shape[1:])
    fold = x.shape[1] // SHARE
    back = F.pad(clips[:, 1:, :fold], (0, 0, 0, 0, 0, 0, 0, 1))
    on = F.pad(clips[:, :-1, fold : 2 * fold], (0, 0, 0, 0, 0, 0, 1, 0))
    return torch.cat([back, on, clips[:, :, 2 * fold :]], 2).flatten(0, 1)


def x3d(classes: int) -> nn.Module:
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""
    width = _X3D_WIDTHS[0]
    stem = sequence(
        conv=sequence(
            conv_t=_convolution(3, width, 1, 3, stride=(1, 2, 2)),
            conv_xy=_convolution(width, width, 5, groups=width),
        ),
        norm=nn.BatchNorm3d(width),
        activation=nn.ReLU(),
    )
    stages = []
    for depth, outputs in zip(_X3D_DEPTHS, _X3D_WIDTHS, strict=True):
        blocks = nn.Sequential()
        for number in range(depth):
            inner, stride = int(2.25 * outputs), 1 if number else 2
            blocks.append(ResBlock(width, inner, outputs, 1, stride, x3d=1 if number % 2 else 2))
            width = outputs
        stages.append(sequence(res_blocks=blocks))
    pool = sequence(
        pre_conv=_convolution(width, _X3D_LAST),
        pre_norm=nn.BatchNorm3d(_X3D_LAST),
        pre_act=nn.ReLU(),
        pool=nn.AdaptiveAvgPool3d(1),
        post_conv=_convolution(_X3D_LAST, _X3D_HEAD),
        post_act=nn.ReLU(),
        flat=nn.Flatten(),
    )
    head = sequence(pool=pool, dropout=nn.Dropout(0.5), proj=nn.Linear(_X3D_HEAD, classes))
    return sequence(blocks=nn.Sequential(stem, *stages, head))


def c3d(classes: int) -> nn.Module:
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""
    layers: dict[str, nn.Module] = {}
    inputs = 3
    for name, width in _C3D_LAYERS.items():
        layers |= {f"conv{name}": nn.Conv3d(inputs, width, 3, padding=1), f"relu{name}": nn.ReLU()}
        inputs = width
        if not name.endswith("a"):
            # The first leaves the frames apart; the last has a row and a column of padding.
            kernel, padding = (1 if name == "1" else 2, 2, 2), (0, 1, 1) if name == "5b" else (0, 0, 0)
            layers[f"pool{name}"] = nn.MaxPool3d(kernel, padding=padding, ceil_mode=True)
    layers |= {"grid": nn.AdaptiveAvgPool3d(_GRID), "flat": nn.Flatten()}
    for name, wide in (("fc6", 16 * inputs), ("fc7", _WIDE)):
        layers |= {name: nn.Linear(wide, _WIDE), f"relu{name}": nn.ReLU(), f"drop{name}": nn.Dropout(0.5)}
    return sequence(**layers, fc8=nn.Linear(_WIDE, classes))


def i3d(classes: int) -> nn.Module:
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]."""
    from torchvision.models import GoogLeNet  # it takes seconds, and not every network needs it

    network: nn.Module = GoogLeNet(classes, aux_logits=False, init_weights=False, dropout=0.5)
    for module in [*network.modules()]:
        for name, child in module.named_children():
            if isinstance(child, nn.Conv2d):
                kernel, widths = child.kernel_size[0], (child.in_channels, child.out_channels)
                cube = nn.Conv3d(*widths, kernel, child.stride[0], kernel // 2, bias=False)
                setattr(module, name, cube)
            elif isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.BatchNorm3d(child.num_features, child.eps))
            elif isinstance(child, nn.MaxPool2d):
                sizes = child.kernel_size, child.stride, child.padding
                setattr(module, name, nn.MaxPool3d(*sizes, ceil_mode=True))
    network.maxpool1 = network.maxpool2 = nn.MaxPool3d((1, 3, 3), (1, 2, 2), ceil_mode=True)
    network.avgpool = nn.AdaptiveAvgPool3d(1)
    return network
