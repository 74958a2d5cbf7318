"""A recurrent layer over what a network says of frames: an answer at every step, of which the last counts.

Hochreiter and Schmidhuber 1997, "Long short-term memory", as DeeperForensics' baseline has it: every fifth
frame, 512 hidden numbers, and a loss over all steps.
"""

from torch import Tensor, nn

HIDDEN, STRIDE = 512, 5


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
