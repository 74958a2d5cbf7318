"""Networks that look at single frames by a backbone: their mean, one of each segment, or a recurrent layer.

- Frames: Rössler et al. 2019, "FaceForensics++", and DeeperForensics' baseline look at videos so.
- TSN, by the same mean: Wang et al. 2016, "Temporal segment networks: Towards good practices for deep action
  recognition", section 3.1: three segments, in training a frame by chance of each.
- Recurrent: Hochreiter and Schmidhuber 1997, "Long short-term memory", as DeeperForensics' baseline has it:
  every fifth frame, 512 hidden numbers, and a loss over all steps.
"""

from torch import Tensor, nn

SEGMENTS = 3
HIDDEN, STRIDE = 512, 5


class Frames(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]: the mean of what is said of each frame."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes."""
        frames: Tensor = self.head(self.backbone(clips.transpose(1, 2).flatten(0, 1)))
        return frames.view(len(clips), clips.shape[2], -1).mean(1)


class Recurrent(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → logits [B, T, K] in training, and the last, [B, K], otherwise."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.lstm, self.head = nn.LSTM(width, HIDDEN, batch_first=True), nn.Linear(HIDDEN, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes."""
        features: Tensor = self.backbone(clips.transpose(1, 2).flatten(0, 1))
        logits: Tensor = self.head(self.lstm(features.view(len(clips), clips.shape[2], -1))[0])
        return logits if self.training else logits[:, -1]
