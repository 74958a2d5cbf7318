"""A network on single frames, whose answer is the mean of what it says of each.

Rössler et al. 2019, "FaceForensics++", and DeeperForensics' baseline look at videos so.
"""

from torch import Tensor, nn


class Frames(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]: the mean of what is said of each frame."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits of the classes."""
        frames: Tensor = self.head(self.backbone(clips.transpose(1, 2).flatten(0, 1)))
        return frames.view(len(clips), clips.shape[2], -1).mean(1)
