"""A clip of any length on a grid of fixed length, as BSN and BMN see it.

He et al. 2021, "ForgeryNet": features of clips of eight frames, four frames apart, interpolated linearly to
T + 1 = 51 points over the annotated stretch. Ours are means of the frames' standardised forensic features,
beside their deviation from the clip's median.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.features.cell_traces import CELL_WIDTH
from detector.model.scanner import CLIPPED_AT, median
from updater.scan.clips import ScannedClip

POINTS = 51
_CLIP, _STRIDE = 8, 4


@dataclass(frozen=True)
class Grid:
    """Standardised features, float32 [C, POINTS], and the true segments, float64 [m, 2], in 0..1."""

    features: Tensor
    segments: NDArray[np.float64]


class Rescaling:
    """How clips come onto the grid: what is usual is taken from those that are trained on."""

    def __init__(self, clips: Sequence[ScannedClip]) -> None:
        rows = torch.cat([_beside_median(clip.features) for clip in clips])
        self._mean, self._deviation = rows.mean(0), rows.std(0).clamp_min(1e-6)
        self.channels = rows.shape[1]

    def grid(self, clip: ScannedClip) -> Grid:
        """Bring a clip and its truth onto the grid."""
        return Grid(self.features(clip.features), clip.segments / len(clip.features))

    def features(self, raw: NDArray[np.float32]) -> Tensor:
        """Bring raw features of frames, float32 [T, F], onto the grid: float32 [channels, POINTS]."""
        standard = (_beside_median(raw) - self._mean) / self._deviation
        rows = standard.clamp(-CLIPPED_AT, CLIPPED_AT).numpy()
        starts = np.arange(0, max(1, len(rows) - _CLIP + 1), _STRIDE)
        means = np.stack([rows[start : start + _CLIP].mean(0) for start in starts])
        middles = starts + min(_CLIP, len(rows)) / 2
        wanted = np.linspace(0, len(rows), POINTS)
        columns = [np.interp(wanted, middles, column) for column in means.T]
        return torch.from_numpy(np.stack(columns).astype(np.float32))


def _beside_median(raw: NDArray[np.float32]) -> Tensor:
    whole = torch.from_numpy(raw[:, :-CELL_WIDTH])
    return torch.cat([whole, whole - median(whole)], 1)


def usable(clips: Sequence[ScannedClip]) -> list[ScannedClip]:
    """Return the forged clips, which alone these methods are trained on. Raises ValueError for none."""
    forged = [clip for clip in clips if len(clip.segments)]
    if not forged:
        raise ValueError("training needs clips with forged stretches")
    return forged


def balanced(said: Tensor, truth: Tensor) -> Tensor:
    """Return the binary cross-entropy with positives and others weighing the same, a scalar.

    said: probabilities; truth: of the same shape, positive from 0.5. Where a batch has no positives, or
    nothing else, the other side stands alone.
    """
    positive = (truth > 0.5).float()
    count = positive.numel()
    share = positive.sum().clamp(1, count - 1) if count > 1 else positive.sum()
    up, down = 0.5 * count / share, 0.5 * count / (count - share)
    safe = said.clamp(1e-6, 1 - 1e-6)
    return -(up * positive * safe.log() + down * (1 - positive) * (1 - safe).log()).mean()


def within(segments: NDArray[np.float64], reach: float) -> Tensor:
    """Say which points lie near a start, and near an end, of segments in 0..1: float32 [2, POINTS]."""
    points = np.linspace(0, 1, POINTS)
    near = np.abs(points[None, :, None] - segments.T[:, None, :]) <= reach
    return torch.from_numpy(near.any(2).astype(np.float32))


def peaks(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the points that are local maxima, or score more than half of the highest."""
    padded = np.concatenate([[-np.inf], scores, [-np.inf]])
    local = (scores > padded[:-2]) & (scores > padded[2:])
    return np.flatnonzero(local | (scores > 0.5 * scores.max())).astype(np.int64)
