"""The head over time: which frames of a clip are forged, by the features of one crop of each.

A clip is its own reference: of the whole crop it sees how a frame deviates from the clip's median, and of its
cells between which edges in time a frame lies. So what a camera, a scene or a codec leaves in all frames
alike does not count, and a stretch stands out.
"""

import torch
from torch import Tensor, nn

from detector.features.cell_traces import CELL_WIDTH, EDGES_WIDTH, FrameFeatures, paired_edges

MEMBERS = 3
"""heads whose mean is told, for one says what its first weights were"""
_CHANNELS = 48
_DILATIONS = (1, 2, 4, 8, 16, 32)
_UNSEEN, _DROPOUT = 0.4, 0.3
CLIPPED_AT = 5.0
"""standard deviations, beyond which a feature says no more"""


class FrameHead(nn.Module):
    """Standardised inputs of clips, float32 [B, T, I] → logits of their frames, float32 [B, T].

    One of a scanner's members, which are trained by themselves.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.unseen = nn.Dropout(_UNSEEN)
        self.begin = nn.Conv1d(inputs, _CHANNELS, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(_CHANNELS, _CHANNELS, 3, padding=dilation, dilation=dilation) for dilation in _DILATIONS
        )
        self.dropout = nn.Dropout(_DROPOUT)
        self.end = nn.Conv1d(_CHANNELS, 1, 1)

    def forward(self, standard: Tensor, inside: Tensor) -> Tensor:
        """Return the logits.

        standard: as `Scanner.standard` gives it; inside: float32 [B, T], 1 for a frame and 0 beyond a shorter
        clip's end, so that no clip depends on those beside it.
        """
        within = inside[:, None]
        hidden: Tensor = self.begin(self.unseen(standard).transpose(1, 2)) * within
        for block in self.blocks:
            hidden = hidden + self.dropout(torch.relu(block(hidden))) * within
        logits: Tensor = self.end(hidden)[:, 0]
        return logits


class Scanner(nn.Module):
    """Features of the frames of one clip, float32 [T, F], in order → the probability of each, float32 [T].

    `ScannerGraph` has it for what a release exports; training calls the members on many clips.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        """features: how many columns, of which the last CELL_WIDTH are the traces of cells."""
        super().__init__()
        inputs = _inputs(features)
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))
        self.members = nn.ModuleList(FrameHead(inputs) for _ in range(MEMBERS))

    def standardise(self, inputs: Tensor) -> None:
        """Learn the scale of inputs from all frames of a training, float32 [N, I] by `over_time`."""
        self.mean.copy_(inputs.mean(0))
        self.deviation.copy_(inputs.std(0).clamp_min(1e-6))

    def standard(self, inputs: Tensor) -> Tensor:
        """Return the members' input, from inputs float32 [T, I]."""
        return ((inputs - self.mean) / self.deviation).clamp(-CLIPPED_AT, CLIPPED_AT)

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Return the probability that each frame is forged, the mean over members, by name."""
        inputs = self.standard(over_time(features))[None]
        inside = torch.ones_like(inputs[:, :, 0])
        scores = [member(inputs, inside)[0].sigmoid() for member in self.members]
        return {"frame_score": torch.stack(scores).mean(0)}


class ScannerGraph(nn.Module):
    """The module of `scanner.onnx`: uint8 crops of one place of a clip → the probability of each frame.

    A clip may go through it in parts, since all crops at once take twice as long as a few at a time: each
    part's features are given back, and are given again with the parts behind it. The features have no
    weights, so those of the scanner are all that there are. Raises ValueError where it was trained on
    features of another number.
    """

    def __init__(self, scanner: Scanner, crop_px: int) -> None:
        super().__init__()
        self.features = FrameFeatures(crop_px)
        self.scanner = scanner
        if len(scanner.mean) != _inputs(self.features.width):
            raise ValueError(f"a scanner of other features than the {self.features.width} of a frame")

    def forward(self, crops: Tensor, before: Tensor | None = None) -> dict[str, Tensor]:
        """Return `features`, float32 [T, F], and `frame_score`, float32 [t + T] in 0..1.

        crops: uint8 [T, S, S, 3] in the order of frames; before: float32 [t, F], the features of the frames
        before these; None: there are none.
        """
        features = self.features(crops.permute(0, 3, 1, 2).float())
        so_far = features if before is None else torch.cat([before, features])
        scored: dict[str, Tensor] = self.scanner(so_far)
        return {"features": features, **scored}


def _inputs(features: int) -> int:
    """Return how many columns `over_time` makes of so many."""
    return features - CELL_WIDTH + EDGES_WIDTH


def over_time(features: Tensor) -> Tensor:
    """Return the head's input, float32 [T, I], from a clip's features, float32 [T, F].

    The deviation of those of the whole crop from the clip's median, and the paired edges of its cells.
    """
    whole, cells = features[:, :-CELL_WIDTH], features[:, -CELL_WIDTH:]
    return torch.cat([whole - median(whole), paired_edges(cells)], 1)


def median(features: Tensor) -> Tensor:
    """Return the median over time, float32 [1, F], of features, float32 [T, F].

    Of an even number of frames it is the mean of the middle two.
    """
    half = features.shape[0] // 2 + 1
    # What both the upper and the lower half hold is the middle; a median or a sort does not export.
    upper = features.topk(half, 0).values.amin(0, keepdim=True)
    lower = features.topk(half, 0, largest=False).values.amax(0, keepdim=True)
    return (upper + lower) / 2
