"""The picture branch: a timm model on the whole picture, with a vote of its own.

It sees nothing of the crops, and the network nothing of it. Its logits are added to the network's, so it has
a say in real or fake and in which family. The scores of unfamiliarity are the forensic network's alone: a
backbone that knows scenes finds a new source unfamiliar, and a forgery of a known one not.
"""

import torch
from torch import Tensor, nn

from detector.model.backbone import make_backbone
from detector.release.architecture import Picture


class PictureBranch(nn.Module):
    """Whole pictures → logits of pools of pictures, to be added to a network's, over the same K classes."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, picture: Picture, classes: int) -> None:
        super().__init__()
        self.picture = picture
        self.backbone, width = make_backbone(picture.backbone, 3, picture.side_px)
        self.head = nn.Linear(width, classes)
        for name in ("mean", "deviation"):
            column = torch.tensor(getattr(picture, name))[:, None, None]
            self.register_buffer(name, column, persistent=False)
        self.eval().requires_grad_(False)

    def features(self, pictures: Tensor) -> Tensor:
        """float32 [N, 3, S, S] in 0..255 → the backbone's features, float32 [N, B]."""
        found: Tensor = self.backbone((pictures - self.mean) / self.deviation)
        return found

    def forward(self, pictures: Tensor, pooling: Tensor) -> Tensor:
        """pictures: uint8 [N, S, S, 3]; pooling: float32 [M, N], each row summing to 1 → float32 [M, K]."""
        logits: Tensor = self.head(pooling @ self.features(pictures.permute(0, 3, 1, 2).float()))
        return logits
