"""TSM: a network on single frames, of whose channels some come from the frame before and the frame after.

Lin, Gan and Han 2019, "TSM: Temporal shift module for efficient video understanding", section 3: in each
residual block an eighth of the channels is shifted each way before the first convolution; the answer is the
mean over the frames.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
        """Return what the convolution makes of the shifted channels."""
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
