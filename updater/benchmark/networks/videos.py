"""Classifiers of clips, by name: their parts and their frames.

Those on single frames of a backbone:

- Frames: Rössler et al. 2019, "FaceForensics++", and DeeperForensics' baseline look at videos so.
- TSN, by the same mean: Wang et al. 2016, "Temporal segment networks: Towards good practices for deep action
  recognition", section 3.1: three segments, in training a frame by chance of each.
- Recurrent: Hochreiter and Schmidhuber 1997, "Long short-term memory", as DeeperForensics' baseline has it:
  every fifth frame, 512 hidden numbers, and a loss over all steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from detector.model.backbone import check_name
from updater.benchmark.networks.deeperforensics import C3D, C3D_FRAMES, C3D_PX, I3D, I3D_FRAMES
from updater.benchmark.networks.forgerynet import TSM, X3D, Slow, SlowFast
from updater.benchmark.networks.images import HIGHPASS, NetworkError, make_features

SEGMENTS = 3
HIDDEN, STRIDE = 512, 5


class Frames(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → float32 logits [B, K]: the mean of the frames' logits."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        frames: Tensor = self.head(self.backbone(clips.transpose(1, 2).flatten(0, 1)))
        return frames.view(len(clips), clips.shape[2], -1).mean(1)


class Recurrent(nn.Module):
    """float32 RGB [B, 3, T, S, S], 0..1 → logits [B, T, K] in training, and the last, [B, K], otherwise."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.lstm, self.head = nn.LSTM(width, HIDDEN, batch_first=True), nn.Linear(HIDDEN, classes)

    def forward(self, clips: Tensor) -> Tensor:
        features: Tensor = self.backbone(clips.transpose(1, 2).flatten(0, 1))
        logits: Tensor = self.head(self.lstm(features.view(len(clips), clips.shape[2], -1))[0])
        return logits if self.training else logits[:, -1]


@dataclass(frozen=True)
class Sampling:
    """Which frames of a video a network is published to see; None: those that the recipe names."""

    frames: int | None = None
    stride: int | None = None
    segments: bool = False
    """one frame of each of equal segments, and no clip"""
    px: int | None = None


WHOLE: Mapping[str, Callable[[int], nn.Module]] = {
    "x3d_m": X3D,
    "slowfast_r50": SlowFast,
    "slow_r50": Slow,
    "tsm_r50": TSM,
    "c3d": C3D,
    "i3d": I3D,
}
"""written here"""
TORCHVISION = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s")
OF_FRAMES: Mapping[str, Callable[[nn.Module, int, int], nn.Module]] = {
    "frames": Frames,
    "tsn": Frames,
    "lstm": Recurrent,
}
"""on any model of timm's: NAME:BACKBONE, or NAME:highpass:BACKBONE"""

FORGERYNETS = ("x3d_m", "slowfast_r50", "slow_r50", "tsm_r50", *TORCHVISION, "frames")
DEEPERFORENSICS = ("c3d", "i3d", "lstm", "tsn")
"""of its paper, beside Xception on frames"""

_MVIT_PX, _MVIT_FRAMES = 224, 16
_SAMPLINGS = {
    "c3d": Sampling(C3D_FRAMES, 1, px=C3D_PX),
    "i3d": Sampling(I3D_FRAMES, 1),
    "lstm": Sampling(stride=STRIDE),
    "tsn": Sampling(SEGMENTS, segments=True),
}


def check(name: str, offered: Sequence[str] = (*FORGERYNETS, *DEEPERFORENSICS)) -> None:
    """Raise NetworkError for a name that is none of those, and BackboneError for a backbone that is none."""
    kind, _, backbone = name.partition(":")
    if kind in offered and (kind in OF_FRAMES) == bool(backbone):
        if backbone:
            check_name(backbone.removeprefix(f"{HIGHPASS}:"))
        return
    ways = ", ".join(f"{kind}:BACKBONE" if kind in OF_FRAMES else kind for kind in offered)
    raise NetworkError(f"--model {name} looks at no videos: choose of {ways} (any model of timm's)")


def sampling_of(name: str) -> Sampling:
    kind, _, backbone = name.partition(":")
    usual = _SAMPLINGS.get(kind, Sampling())
    return Sampling(usual.frames, usual.stride, usual.segments, 299) if "xception" in backbone else usual


def make_video_network(
    name: str, classes: int, px: int, frames: int, weights: Path | None = None, *, pretrained: bool = False
) -> nn.Module:
    """Return a network by name, float32 RGB [B, 3, frames, px, px] (0..1) → logits [B, classes].

    weights: of the backbone of a network on frames, safetensors; pretrained: timm's or torchvision's, which
    are downloaded. Raises NetworkError where a network cannot begin so or see such clips, BackboneError and
    WeightsError.
    """
    check(name)
    kind, _, backbone = name.partition(":")
    if backbone:
        return OF_FRAMES[kind](*make_features(backbone, 3, px, weights, pretrained=pretrained), classes)
    if weights is not None or (pretrained and name in WHOLE):
        raise NetworkError(
            f"{name} begins at random: give weights to a network on frames, such as frames:resnet18"
        )
    if name in WHOLE:
        return WHOLE[name](classes)
    return _of_torchvision(name, classes, px, frames, pretrained=pretrained)


def _of_torchvision(name: str, classes: int, px: int, frames: int, *, pretrained: bool) -> nn.Module:
    from torchvision.models import video  # it takes seconds, and most networks do not need it

    if name == "mvit_v2_s" and (px, frames) != (_MVIT_PX, _MVIT_FRAMES):
        raise NetworkError(
            f"mvit_v2_s sees {_MVIT_FRAMES} frames of {_MVIT_PX} px alone, not {frames} of {px} px"
        )
    network: Any = getattr(video, name)(weights="DEFAULT" if pretrained else None)
    if name == "s3d":
        # As it is at 224 px, it then takes any size.
        network.avgpool = nn.AdaptiveAvgPool3d(1)
        network.classifier[1] = nn.Conv3d(network.classifier[1].in_channels, classes, 1)
    elif name == "mvit_v2_s":
        network.head[1] = nn.Linear(network.head[1].in_features, classes)
    else:
        network.fc = nn.Linear(network.fc.in_features, classes)
    return network  # type: ignore[no-any-return]  # torchvision's own classes
