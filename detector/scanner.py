"""The head over time: which frames of a clip are forged, by the forensic features of each.

A clip is its own reference: beside its features, each frame shows how these deviate from the clip's median.
So what a camera, a scene or a codec leaves in all frames alike does not count, and a stretch stands out.
"""

import torch
from torch import Tensor, nn

from detector.forensics import ForensicFeatures

_CHANNELS = 48
_DILATIONS = (1, 2, 4, 8)
_DROPOUT = 0.2
CLIPPED_AT = 5.0
"""standard deviations, beyond which a feature says no more"""


class Scanner(nn.Module):
    """Features of the frames of one clip, float32 [T, F], in order → the probability of each, float32 [T].

    `ScannerGraph` has it for what a release exports; training calls `logits` on many clips.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2 * features))
        self.register_buffer("deviation", torch.ones(2 * features))
        self.begin = nn.Conv1d(2 * features, _CHANNELS, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(_CHANNELS, _CHANNELS, 3, padding=dilation, dilation=dilation) for dilation in _DILATIONS
        )
        self.dropout = nn.Dropout(_DROPOUT)
        self.end = nn.Conv1d(_CHANNELS, 1, 1)

    def standardise(self, inputs: Tensor) -> None:
        """Learn what is usual from all frames of a training, float32 [N, 2F] by `beside_median`."""
        self.mean.copy_(inputs.mean(0))
        self.deviation.copy_(inputs.std(0).clamp_min(1e-6))

    def logits(self, inputs: Tensor, inside: Tensor) -> Tensor:
        """Return the logits of frames, float32 [B, T].

        inputs: float32 [B, T, 2F], as `beside_median` gives them; inside: float32 [B, T], 1 for a frame and 0
        beyond a shorter clip's end, so that no clip depends on those beside it.
        """
        standard = ((inputs - self.mean) / self.deviation).clamp(-CLIPPED_AT, CLIPPED_AT)
        within = inside[:, None]
        found: Tensor = self.begin(standard.transpose(1, 2)) * within
        for block in self.blocks:
            found = found + self.dropout(torch.relu(block(found))) * within
        logits: Tensor = self.end(found)[:, 0]
        return logits

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Return the probability that each frame is forged, by name."""
        inputs = beside_median(features)
        return {"frame_score": self.logits(inputs[None], torch.ones_like(inputs[None, :, 0]))[0].sigmoid()}


class ScannerGraph(nn.Module):
    """What `scanner.onnx` is made of: uint8 crops of one place of a clip → the probability of each frame.

    A clip may go through it in parts, since all crops at once take twice as long as a few at a time: each
    part's features are given back, and are given again with the parts behind it. The features have no
    weights, so those of the scanner are all that there are. Raises ValueError where it was trained on
    features of another number.
    """

    def __init__(self, scanner: Scanner, crop_px: int) -> None:
        super().__init__()
        self.features = ForensicFeatures(crop_px)
        self.scanner = scanner
        if len(scanner.mean) != 2 * self.features.width:
            raise ValueError(f"a scanner of {len(scanner.mean) // 2} features, not of {self.features.width}")

    def forward(self, crops: Tensor, before: Tensor) -> dict[str, Tensor]:
        """Return `features`, float32 [T, F], and `frame_score`, float32 [t + T] in 0..1.

        crops: uint8 [T, S, S, 3] in the order of frames; before: float32 [t, F], the features of the frames
        before these.
        """
        features = self.features(crops.permute(0, 3, 1, 2).float())
        scored: dict[str, Tensor] = self.scanner(torch.cat([before, features]))
        return {"features": features, **scored}


def beside_median(features: Tensor) -> Tensor:
    """Return float32 [T, 2F]: the features, float32 [T, F], and their deviation from the clip's median.

    Of an even number of frames the median is the mean of the middle two.
    """
    half = features.shape[0] // 2 + 1
    # What both the upper and the lower half hold is the middle; a median or a sort does not export.
    upper = features.topk(half, 0).values.amin(0, keepdim=True)
    lower = features.topk(half, 0, largest=False).values.amax(0, keepdim=True)
    return torch.cat([features, features - (upper + lower) / 2], 1)
