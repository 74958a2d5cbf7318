"""The network of a release: a residual front end, any timm backbone, a forensic branch, one head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.features.forensics import residual_kernels
from detector.features.texture import CropFeatures
from detector.model.backbone import make_backbone
from detector.model.scores import NetworkOutput
from detector.release.manifest import Architecture as Architecture
from detector.release.manifest import Channels

_WHITENED_CLIP = 6.0
SCALED_CLIP = 3.0
"""of frozen features, in units of their scales"""
_COSINE_SCALE = 10.0
_IMAGENET: tuple[Channels, Channels] = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_MIDDLE: Channels = (127.5, 127.5, 127.5)


class ResidualFrontEnd(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → [N, 12, S, S]: three clipped residuals a channel, then RGB.

    The filters are fixed and the clip is at 3 of 255 grey levels: what the scene shows is cut away
    and what the camera or the generator left in the last bits stays.
    """

    channels = 12
    kernels: Tensor

    def __init__(self, mean: Channels | None = None, deviation: Channels | None = None) -> None:
        super().__init__()
        self.rgb = PlainFrontEnd(mean or _MIDDLE, deviation or _MIDDLE)
        kernels = residual_kernels()[[0, 4, 5]] / torch.tensor([1, 2, 2])[:, None, None, None]
        self.register_buffer("kernels", kernels.repeat(3, 1, 1, 1), persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        """Return float32 [N, 12, S, S]: residuals within -1..1, RGB by the mean and the deviation."""
        residuals = F.conv2d(crops, self.kernels, padding=2, groups=3)
        return torch.cat([residuals.clamp(-3, 3) / 3, self.rgb(crops)], 1)


class PlainFrontEnd(nn.Module):
    """float32 [N, 3, S, S] in 0..255 → the same, brought to a mean and a deviation."""

    channels = 3
    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Channels | None = None, deviation: Channels | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", _column(mean or _IMAGENET[0]), persistent=False)
        self.register_buffer("deviation", _column(deviation or _IMAGENET[1]), persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        """Return float32 [N, 3, S, S]."""
        return (crops - self.mean) / self.deviation


def _column(values: Channels) -> Tensor:
    return torch.tensor(values)[:, None, None]


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
    feature_scale: Tensor
    """of a network of frozen features, float32 [F]: by which a feature is multiplied once its mean is gone"""

    def __init__(self, architecture: Architecture, classes: int) -> None:
        super().__init__()
        self.architecture = architecture
        width, size = architecture.width, architecture.crop_px
        front = ResidualFrontEnd if architecture.forensic else PlainFrontEnd
        self.front = front(architecture.mean, architecture.deviation)
        self.backbone, seen = make_backbone(architecture.backbone, self.front.channels, size)
        self.embedding_size = 0
        if seen:
            self.project = nn.Sequential(nn.Linear(seen, width), nn.LayerNorm(width), nn.GELU())
            self.embedding_size += width
        self.forensics: CropFeatures | None = None
        if architecture.forensic:
            self.forensics = CropFeatures(size)
            count = self.forensics.width
            self.register_buffer("feature_mean", torch.zeros(count))
        if self.forensics is not None and architecture.frozen:
            self.register_buffer("feature_scale", torch.ones(count))
            self.embedding_size += count
        elif self.forensics is not None:
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
        """Return the head's input, before dropout, float32 [M, D], from the same as `classify`."""
        parts = [self.project(seen)] if seen.shape[1] else []
        if self.forensics is not None:
            parts.append(self.evidence(features))
        return torch.cat(parts, 1)

    def evidence(self, features: Tensor) -> Tensor:
        """Return the forensic part of the embedding from raw features [M, F], float32 [M, width].

        Of a network of frozen features it is these, scaled and clipped, float32 [M, F]. Rows that are longer
        than usual are shortened, to a root mean square of 1: else linear logits of what is far from all that
        is known would be the surest of all.
        """
        if self.architecture.frozen:
            scaled = ((features - self.feature_mean) * self.feature_scale).clamp(-SCALED_CLIP, SCALED_CLIP)
            return scaled / scaled.square().mean(1, keepdim=True).sqrt().clamp_min(1.0)
        whitened = (features - self.feature_mean) @ self.feature_whitening
        part: Tensor = self.branch(whitened.clamp(-_WHITENED_CLIP, _WHITENED_CLIP))
        return part
