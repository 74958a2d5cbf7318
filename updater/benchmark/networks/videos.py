"""Classifiers of clips, by name: their parts and their frames.

Those on single frames of a backbone:

- Frames: Rössler et al. 2019, "FaceForensics++", and DeeperForensics' baseline look at videos so.
- TSN, by the same mean: Wang et al. 2016, "Temporal segment networks: Towards good practices for deep action
  recognition", section 3.1: three segments, in training a frame by chance of each.
- Recurrent: Hochreiter and Schmidhuber 1997, "Long short-term memory", as DeeperForensics' baseline has it:
  every fifth frame, 512 hidden numbers, and a loss over all steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from updater.benchmark.networks.clips import (
    C3D_FRAMES,
    C3D_PX,
    I3D_FRAMES,
    TSM,
    SlowFast,
    c3d,
    i3d,
    slow_only,
    x3d,
)
from updater.benchmark.networks.images import make_features
from updater.benchmark.networks.names import NetworkError, check_video
from updater.training.weights import Weights, WeightsError, fill, read_weights

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
    "x3d_m": x3d,
    "slowfast_r50": SlowFast,
    "slow_r50": slow_only,
    "tsm_r50": TSM,
    "c3d": c3d,
    "i3d": i3d,
}
"""written here"""
_KINETICS = "https://dl.fbaipublicfiles.com/pytorchvideo/model_zoo/kinetics/{}.pyth"
_PYTORCHVIDEO = {"x3d_m": "X3D_M", "slowfast_r50": "SLOWFAST_8x8_R50", "slow_r50": "SLOW_8x8_R50"}
_FUSED = 7
"""frames that the fusion of SlowFast's published weights sees"""
_OF_IMAGENET = {"tsm_r50": "resnet50", "i3d": "googlenet"}
"""torchvision's networks on pictures, whose weights these begin with, as their papers have it"""

_MVIT_PX, _MVIT_FRAMES = 224, 16
_SAMPLINGS = {
    "c3d": Sampling(C3D_FRAMES, 1, px=C3D_PX),
    "i3d": Sampling(I3D_FRAMES, 1),
    "lstm": Sampling(stride=STRIDE),
    "tsn": Sampling(SEGMENTS, segments=True),
}


def sampling_of(name: str) -> Sampling:
    kind, _, backbone = name.partition(":")
    usual = _SAMPLINGS.get(kind, Sampling())
    return Sampling(usual.frames, usual.stride, usual.segments, 299) if "xception" in backbone else usual


def make_video_network(
    name: str, classes: int, px: int, frames: int, weights: Path | None = None, *, pretrained: bool = False
) -> nn.Module:
    """Return a network by name, float32 RGB [B, 3, frames, px, px] (0..1) → logits [B, classes].

    weights: safetensors, of the backbone of a network on frames, else of the whole network, whose head is
    left out. pretrained: those that timm, torchvision and PyTorchVideo publish, which are downloaded. Raises
    NetworkError where a network cannot begin so or see such clips, BackboneError and WeightsError.
    """
    check_video(name)
    kind, _, backbone = name.partition(":")
    if backbone:
        make = Recurrent if kind == "lstm" else Frames
        return make(*make_features(backbone, 3, px, weights, pretrained=pretrained), classes)
    begins = weights is not None or pretrained
    if name == "slowfast_r50" and begins:
        network: nn.Module = SlowFast(classes, _FUSED)
    else:
        network = WHOLE[name](classes) if name in WHOLE else _of_torchvision(name, classes, px, frames)
    if begins:
        begin_with(network, fetch_weights(name) if weights is None else read_weights(weights))
    return network


def begin_with(network: nn.Module, weights: Weights) -> None:
    """Give a network weights of its own names, but for its head, which stays as it is.

    Filters of pictures are repeated along time and divided by how often: Carreira and Zisserman 2017, "Quo
    vadis, action recognition?", section 2.4.1. Raises WeightsError where a name or a shape does not fit.
    """
    own = network.state_dict()
    head = next(reversed(own)).rpartition(".")[0] + "."
    within = "" if own.keys() & weights.tensors.keys() else "backbone."
    state = {name: value for name, value in own.items() if name.endswith("num_batches_tracked")}
    for name, value in weights.tensors.items():
        wanted = own.get(within + name, value)
        flat = value.ndim + 1 == wanted.ndim == 5
        filters = value[:, :, None].repeat(1, 1, wanted.shape[2], 1, 1) / wanted.shape[2] if flat else value
        state[within + name] = filters
    heads = (head, head.removesuffix("1."))
    fill(network, {k: v for k, v in state.items() if not k.startswith(heads)}, weights, (head,))


def fetch_weights(name: str) -> Weights:
    """Fetch a network's published weights, or those of its cache. Raises NetworkError and WeightsError."""
    from torchvision.models import get_model_weights  # it takes seconds, and most networks do not need it

    if name == "c3d":
        raise NetworkError("c3d has no published weights that are kept: begin with --checkpoint")
    try:
        if name in _PYTORCHVIDEO:
            url = _KINETICS.format(_PYTORCHVIDEO[name])
            state = torch.hub.load_state_dict_from_url(url, map_location="cpu", weights_only=True)[
                "model_state"
            ]
        else:
            best: Any = get_model_weights(_OF_IMAGENET.get(name, name))
            state = best.DEFAULT.get_state_dict(check_hash=True)
    except (OSError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise WeightsError(f"{name}'s weights cannot be had ({why}): begin without them") from error
    kept = {key: value for key, value in state.items() if not key.startswith("aux")}
    return Weights(f"{name}'s published weights", kept)


def _of_torchvision(name: str, classes: int, px: int, frames: int) -> nn.Module:
    from torchvision.models import video  # it takes seconds, and most networks do not need it

    if name == "mvit_v2_s" and (px, frames) != (_MVIT_PX, _MVIT_FRAMES):
        raise NetworkError(
            f"mvit_v2_s sees {_MVIT_FRAMES} frames of {_MVIT_PX} px alone, not {frames} of {px} px"
        )
    network: Any = getattr(video, name)(weights=None, num_classes=classes)
    if name == "s3d":
        network.avgpool = nn.AdaptiveAvgPool3d(1)  # as it is at 224 px, it then takes any size
    return network  # type: ignore[no-any-return]  # torchvision's own classes
