"""BSN: boundaries are found first, and proposals between them are then judged.

Lin et al. 2018, "BSN: Boundary Sensitive Network for Temporal Action Proposal Generation", with the
constants of its code as He et al. 2021 use it. Of that code two slips are not inherited: the low bound of the
IoU is 0.2 (there 2.2, which leaves the middle class empty), and each proposal's loss is weighted before the
mean.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.second_pass.scan_look import Segments, soft_nms
from updater.benchmark.temporal.bmn import POINTS, Rescaling, bce, convolution, descend, proposals, within
from updater.benchmark.temporal.method import Localization, Localizer, Progress, by_segments
from updater.scan.clips import ScannedClip
from updater.scan.training import tiou

_HIDDEN, _JUDGE_HIDDEN = 512, 256
_EPOCHS, _BATCH = 20, 16
_TEM_RATE, _PEM_RATE, _FALLS_AFTER = 1e-3, 1e-2, (7, 10)
_LOW, _HIGH = 0.2, 0.6
_ALPHA, _BOUNDS = 0.75, (0.65, 0.9)
_INSIDE, _BESIDE, _REACH = 16, 8, 0.2
_MOST_PROPOSALS = 200


class Boundaries(nn.Module):
    """TEM: features float32 [B, C, POINTS] → action, start and end, probabilities float32 [B, 3, POINTS]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *convolution(nn.Conv1d, channels, _HIDDEN, 3),
            *convolution(nn.Conv1d, _HIDDEN, _HIDDEN, 3),
            nn.Conv1d(_HIDDEN, 3, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        return torch.sigmoid(0.01 * self.layers(features))


class PEM(nn.Module):
    """PEM: 32 numbers of a proposal → how much of a true segment it is, float32 [N]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(_INSIDE + 2 * _BESIDE, _JUDGE_HIDDEN), nn.ReLU(), nn.Linear(_JUDGE_HIDDEN, 1)
        )

    def forward(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(0.1 * self.layers(rows))[:, 0]


def bsn(clips: Sequence[ScannedClip], seed: int, progress: Progress) -> Localizer:
    """Train both networks; see `updater.benchmark.temporal.method.Method`."""
    rescaling = Rescaling(clips)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        boundaries, judge = Boundaries(rescaling.inputs.shape[1]), PEM()
        _train_boundaries(boundaries, rescaling, lambda *at: progress(at[0], 2 * at[1]))
        _train_judge(judge, boundaries, rescaling, lambda *at: progress(sum(at), 2 * at[1]))

    def localize(features: NDArray[np.float32]) -> Localization:
        curves = _curves(boundaries, rescaling.features(features))
        segments = _proposals(curves)
        with torch.inference_mode():
            judged = judge(torch.from_numpy(_segment_features(curves[0], segments))).double().numpy()
        segments[:, 2] *= judged
        kept = soft_nms(segments, _ALPHA, _BOUNDS) * [len(features), len(features), 1]
        return Localization(by_segments(kept, len(features)), kept)

    return localize


def _train_boundaries(network: Boundaries, clips: Rescaling, progress: Progress) -> None:
    edges = [within(segments, 1.5 / (POINTS - 1)) for segments in clips.truths]
    actions = [_action(segments)[None] for segments in clips.truths]
    truth = torch.stack([*map(torch.cat, zip(actions, edges, strict=True))])

    def loss(chosen: Tensor) -> Tensor:
        output = network(clips.inputs[chosen])
        action, start, end = (bce(output[:, i], truth[chosen, i]) for i in range(3))
        return 2 * action + start + end

    descend(network, loss, len(truth), _BATCH, _EPOCHS, _TEM_RATE, _FALLS_AFTER, progress)


def _train_judge(network: PEM, boundaries: Boundaries, clips: Rescaling, progress: Progress) -> None:
    described, overlaps = [], []
    for features, truths in zip(clips.inputs, clips.truths, strict=True):
        curves = _curves(boundaries, features)
        segments = _proposals(curves)
        described.append(_segment_features(curves[0], segments))
        overlaps.append(tiou(segments[:, :2], truths).max(1, initial=0))
    rows = torch.from_numpy(np.concatenate(described))
    truth = torch.from_numpy(np.concatenate(overlaps)).float()
    weights = _weights(truth)

    def loss(chosen: Tensor) -> Tensor:
        losses = F.smooth_l1_loss(network(rows[chosen]), truth[chosen], reduction="none")
        return (losses * weights[chosen]).sum() / weights[chosen].sum().clamp_min(1e-6)

    descend(network, loss, len(rows), 256, _EPOCHS, _PEM_RATE, _FALLS_AFTER, progress)


def _weights(overlaps: Tensor) -> Tensor:
    """Return proposals' weights: high overlaps count as much as middle ones, half of the low ones."""
    high, low = overlaps > _HIGH, overlaps < _LOW
    middle = ~high & ~low
    count = float(high.sum().clamp_min(1))
    weights = high.float()
    weights[middle] = min(1.0, count / max(1.0, float(middle.sum())))
    weights[low] = min(1.0, 2 * count / max(1.0, float(low.sum())))
    return weights


def _action(segments: NDArray[np.float64]) -> Tensor:
    points = np.linspace(0, 1, POINTS)[:, None]
    inside = (points >= segments[:, 0]) & (points < segments[:, 1])
    return torch.from_numpy(inside.any(1).astype(np.float32))


def _curves(network: Boundaries, features: Tensor) -> NDArray[np.float64]:
    with torch.inference_mode():
        return np.asarray(network(features[None])[0].double().numpy())


def _proposals(curves: NDArray[np.float64]) -> Segments:
    """Return segments in 0..1 from every likely start to every likely end, scored by both; the best."""
    rows = proposals(np.ones((1, POINTS - 1, POINTS - 1)), curves[1:])
    return np.asarray(rows[np.argsort(-rows[:, 2], kind="stable")[:_MOST_PROPOSALS]])


def _segment_features(action: NDArray[np.float64], segments: Segments) -> NDArray[np.float32]:
    """Return 16 numbers of the action inside each segment and 8 about each end, float32 [n, 32]."""
    points = np.linspace(0, 1, POINTS)
    first, end = segments[:, :1], segments[:, 1:2]
    reach = _REACH * (end - first)
    inside = first + (end - first) * np.linspace(0, 1, _INSIDE)
    about = [edge + reach * np.linspace(-1, 1, _BESIDE) for edge in (first, end)]
    places = np.concatenate([inside, *about], 1)
    # What lies beyond the clip is no action.
    return np.asarray(np.interp(places, points, action, left=0, right=0), np.float32)
