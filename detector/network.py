"""The network of a release: a residual front end, any timm backbone, a forensic branch, one head."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.architecture import NO_BACKBONE
from detector.architecture import Architecture as Architecture
from detector.forensics import ForensicFeatures

_WHITENED_CLIP = 6.0
_COSINE_SCALE = 10.0
_IMAGENET_MEAN, _IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class NetworkOutput(NamedTuple):
    """What the network says of M pools of crops, over K known classes (class 0 is real)."""

    logits: Tensor
    """float32 [M, K]"""
    pseudo_logit: Tensor
    """float32 [M]: the class of forgeries of no known family"""
    embedding: Tensor
    """float32 [M, D]: what the head reads"""
    features: Tensor
    """float32 [M, F]: the raw forensic features, pooled; F is 0 where the architecture has none"""


class ResidualFrontEnd(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → [N, 12, S, S]: three clipped residuals a channel, and RGB.

    The filters are fixed and the clip is at 3 of 255 grey levels: what the scene shows is cut away
    and what the camera or the generator left in the last bits stays.
    """

    channels = 12
    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        first = torch.zeros(5, 5)
        first[2, 2:4] = torch.tensor([-1.0, 1.0])
        square = torch.zeros(5, 5)
        square[1:4, 1:4] = torch.tensor([[-1.0, 2, -1], [2, -4, 2], [-1, 2, -1]]) / 4
        wide = torch.tensor(
            [
                [-1.0, 2, -2, 2, -1],
                [2, -6, 8, -6, 2],
                [-2, 8, -12, 8, -2],
                [2, -6, 8, -6, 2],
                [-1, 2, -2, 2, -1],
            ]
        )
        kernels = torch.stack([first, square, wide / 12])[:, None].repeat(3, 1, 1, 1)
        self.register_buffer("kernels", kernels, persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        """Return float32 [N, 12, S, S], every channel about -1..1."""
        residuals = F.conv2d(crops, self.kernels, padding=2, groups=3)
        return torch.cat([residuals.clamp(-3, 3) / 3, crops / 127.5 - 1], 1)


class PlainFrontEnd(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → the same, brought to the mean and deviation that timm expects."""

    channels = 3
    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(_IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(_IMAGENET_STD)[:, None, None], persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        """Return float32 [N, 3, S, S]."""
        return (crops - self.mean) / self.std


class NoBackbone(nn.Module):
    """float32 [N, C, S, S] → float32 [N, 0]: the network reads forensic features alone."""

    def forward(self, images: Tensor) -> Tensor:
        """Return a row without columns for each image."""
        return images.new_zeros((len(images), 0))


def make_backbone(name: str, channels: int, crop_px: int, *, pretrained: bool = False) -> nn.Module:
    """Return timm's model of that name without a head, or none at all for "none".

    pretrained: with timm's weights, which its hub is asked for; else as training from scratch begins. A
    vision transformer, which is made for one size of image, is made for this size of crop. Raises
    RuntimeError for a name that timm does not know.
    """
    if name == NO_BACKBONE:
        return NoBackbone()
    import timm  # it takes seconds, and most processes have no backbone

    described = timm.get_pretrained_cfg(name)
    fixed = described is not None and described.fixed_input_size
    size: dict[str, Any] = {"img_size": crop_px} if fixed else {}
    backbone: nn.Module = timm.create_model(
        name, pretrained=pretrained, in_chans=channels, num_classes=0, **size
    )
    return backbone


class CosineHead(nn.Module):
    """float32 [M, D] → [M, K]: eta * cos(embedding, weight of each class), eta learnt.

    Hou et al. 2019, "Learning a unified classifier incrementally via rebalancing" (LUCIR), eq. 4.
    """

    def __init__(self, embedding_size: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, embedding_size) / embedding_size**0.5)
        self.scale = nn.Parameter(torch.tensor(_COSINE_SCALE))

    def forward(self, embedding: Tensor) -> Tensor:
        """Return float32 [M, K], each within the scale's absolute value."""
        return self.scale * F.linear(F.normalize(embedding, dim=1), F.normalize(self.weight, dim=1))


class Network(nn.Module):
    """Crops → logits of pools of crops.

    A pool is a weighted mean of crops' backbone features and forensic features, taken before the
    head: one row for an item, one for each face or frame. `classes` is K, real included.
    """

    feature_mean: Tensor
    feature_whitening: Tensor

    def __init__(self, architecture: Architecture, classes: int) -> None:
        super().__init__()
        self.architecture = architecture
        width, size = architecture.width, architecture.crop_px
        self.front = ResidualFrontEnd() if architecture.forensic else PlainFrontEnd()
        self.backbone = make_backbone(architecture.backbone, self.front.channels, size)
        self.backbone.eval()
        with torch.no_grad():
            seen = self.backbone(torch.zeros(1, self.front.channels, size, size)).shape[1]
        self.backbone.train()
        self.embedding_size = 0
        if seen:
            self.project = nn.Sequential(nn.Linear(seen, width), nn.LayerNorm(width), nn.GELU())
            self.embedding_size += width
        self.forensics: ForensicFeatures | None = None
        if architecture.forensic:
            self.forensics = ForensicFeatures(size)
            count = self.forensics.width
            self.register_buffer("feature_mean", torch.zeros(count))
            self.register_buffer("feature_whitening", torch.eye(count))
            self.branch = nn.Sequential(
                nn.Linear(count, 2 * width),
                nn.GELU(),
                nn.Dropout(architecture.dropout),
                nn.Linear(2 * width, width),
                nn.LayerNorm(width),
                nn.GELU(),
            )
            self.embedding_size += width
        self.drop = nn.Dropout(architecture.dropout)
        cosine = architecture.head == "cosine"
        self.head = (CosineHead if cosine else nn.Linear)(self.embedding_size, classes)
        self.pseudo_head = nn.Linear(self.embedding_size, 1)

    def forward(self, crops: Tensor, pooling: Tensor) -> NetworkOutput:
        """crops: float32 [N, 3, S, S] in 0..255; pooling: float32 [M, N], each row summing to 1."""
        seen = pooling @ self.backbone(self.front(crops))
        if self.forensics is None:
            features = crops.new_zeros((pooling.shape[0], 0))
        else:
            features = pooling @ self.forensics(crops)
        return self.classify(seen, features)

    def classify(self, seen: Tensor, features: Tensor) -> NetworkOutput:
        """The part after pooling: backbone features [M, B] and raw forensic features [M, F] → output.

        Training calls it with forensic features that were computed once.
        """
        embedding = self.embed(seen, features)
        dropped = self.drop(embedding)
        return NetworkOutput(self.head(dropped), self.pseudo_head(dropped)[:, 0], embedding, features)

    def embed(self, seen: Tensor, features: Tensor) -> Tensor:
        """Return what the head reads, before dropout, float32 [M, D], from the same as `classify`."""
        parts = [self.project(seen)] if seen.shape[1] else []
        if self.forensics is not None:
            parts.append(self.evidence(features))
        return torch.cat(parts, 1)

    def evidence(self, features: Tensor) -> Tensor:
        """Return the forensic part of the embedding from raw features [M, F], float32 [M, width]."""
        whitened = (features - self.feature_mean) @ self.feature_whitening
        part: Tensor = self.branch(whitened.clamp(-_WHITENED_CLIP, _WHITENED_CLIP))
        return part
