"""BMN: every segment of a grid of starts and lengths is judged at once, from features sampled along it.

Lin et al. 2019, "BMN: Boundary-Matching Network for Temporal Action Proposal Generation", with the constants
of its code as He et al. 2021 use it. Of that code two slips are not inherited: segments that end with the
video are judged too, and a batch without positives has a loss that is a number.

BSN and BMN see a clip of any length on a grid of fixed length. He et al. 2021, "ForgeryNet": features of
clips of eight frames, four frames apart, interpolated linearly to T + 1 = 51 points over the annotated
stretch. Ours are means of the frames' standardised forensic features, beside their deviation from the clip's
median.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.features.cell_traces import CELL_WIDTH
from detector.model.scanner import CLIPPED_AT, median
from detector.second_pass.scan_look import soft_nms
from updater.benchmark.temporal.method import Localization, Localizer, Progress, by_segments
from updater.scan.clips import ScannedClip
from updater.scan.training import tiou
from updater.training.fit import Descent, by_schedule, fit, in_epochs

POINTS = 51
_CLIP, _STRIDE = 8, 4


class Rescaling:
    """How clips come onto the grid: their scale is that of the training clips.

    inputs: the forged training clips, which alone these methods are trained on, float32 [n, C, POINTS].
    truths: their true segments in 0..1, float64 [m, 2] each. Raises ValueError where no clip is forged.
    """

    def __init__(self, clips: Sequence[ScannedClip]) -> None:
        forged = [clip for clip in clips if len(clip.segments)]
        if not forged:
            raise ValueError("training needs clips with forged stretches")
        rows = torch.cat([_beside_median(clip.features) for clip in forged])
        self._mean, self._deviation = rows.mean(0), rows.std(0).clamp_min(1e-6)
        self.inputs = torch.stack([self.features(clip.features) for clip in forged])
        self.truths = [clip.segments / len(clip.features) for clip in forged]

    def features(self, raw: NDArray[np.float32]) -> Tensor:
        """Bring raw features of frames, float32 [T, F], onto the grid: float32 [C, POINTS]."""
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


def bce(output: Tensor, truth: Tensor) -> Tensor:
    """Return the binary cross-entropy with positives and others weighing the same, a scalar.

    said: probabilities; truth: of the same shape, positive from 0.5. Where a batch has no positives, or
    nothing else, the other side stands alone.
    """
    positive = (truth > 0.5).float()
    count = positive.numel()
    share = positive.sum().clamp(1, count - 1) if count > 1 else positive.sum()
    up, down = 0.5 * count / share, 0.5 * count / (count - share)
    safe = output.clamp(1e-6, 1 - 1e-6)
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


HIDDEN = (256, 128, 512)
"""channels of the base, of what is sampled, and of what sums the samples up: the paper's"""
SMALL = (64, 32, 128)
"""a quarter of each, for two cores"""
_SAMPLES, _BIN, _BESIDE = 32, 3, 0.5
_EPOCHS, _BATCH, _RATE, _FALLS_AFTER = 9, 8, 1e-3, (7,)
_HIGH, _LOW = 0.7, 0.3
_SURE = 0.9
_ALPHA, _BOUNDS = 0.4, (0.5, 0.9)
_BINS = POINTS - 1


def convolution(
    make: Callable[..., nn.Module], inputs: int, outputs: int, side: int, **more: int
) -> tuple[nn.Module, nn.Module]:
    """Return a convolution that keeps the size, and its ReLU."""
    return make(inputs, outputs, side, padding=side // 2, **more), nn.ReLU()


class BoundaryMatching(nn.Module):
    """Features float32 [B, C, POINTS] → maps float32 [B, 2, D, S]; starts and ends, float32 [B, 2, POINTS].

    The cell (d, s) is the segment from point s to point s + d + 1; the two maps are classification and
    regression of its IoU with the truth. All are probabilities.
    """

    def __init__(self, channels: int, hidden: tuple[int, int, int]) -> None:
        super().__init__()
        base, sampled, summed = hidden
        self.base = nn.Sequential(
            *convolution(nn.Conv1d, channels, base, 3), *convolution(nn.Conv1d, base, base, 3, groups=4)
        )
        self.edges = nn.ModuleList(
            nn.Sequential(
                *convolution(nn.Conv1d, base, base, 3, groups=4), nn.Conv1d(base, 1, 1), nn.Sigmoid()
            )
            for _ in range(2)
        )
        self.reduce = nn.Sequential(*convolution(nn.Conv1d, base, sampled, 3))
        self.sum_up = nn.Sequential(nn.Conv3d(sampled, summed, (_SAMPLES, 1, 1)), nn.ReLU())
        self.judge = nn.Sequential(
            *convolution(nn.Conv2d, summed, sampled, 1),
            *convolution(nn.Conv2d, sampled, sampled, 3),
            *convolution(nn.Conv2d, sampled, sampled, 3),
            nn.Conv2d(sampled, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        base = self.base(features)
        sampled = self.reduce(base) @ sampling()
        along = sampled.unflatten(2, (_SAMPLES, _BINS, _BINS))
        edges = torch.cat([edge(base) for edge in self.edges], 1)
        return self.judge(self.sum_up(along)[:, :, 0]), edges


_POSSIBLE = torch.arange(_BINS)[None, :] + torch.arange(1, _BINS + 1)[:, None] <= _BINS
"""bool [D, S]: the segments that lie within the clip"""


@lru_cache(maxsize=1)
def sampling() -> Tensor:
    """Return the weights of points in each sample of each segment, float32 [POINTS, samples · D · S].

    A segment is sampled from half its length before it to half its length after it, at `_SAMPLES` places,
    each the mean of three; a place between two points takes from both, one beyond the clip is 0.
    """
    starts = np.arange(_BINS)[None, :]
    lengths = np.arange(1, _BINS + 1)[:, None]
    count = _SAMPLES * _BIN
    shares = np.linspace(-_BESIDE, 1 + _BESIDE, count)[:, None, None]
    places = starts + shares * lengths
    weights = np.maximum(0, 1 - np.abs(places[..., None] - np.arange(POINTS)))
    weights *= (starts + lengths <= _BINS)[..., None]
    means = weights.reshape(_SAMPLES, _BIN, _BINS, _BINS, POINTS).mean(1)
    return torch.from_numpy(means.reshape(-1, POINTS).T.astype(np.float32).copy())


def bmn(
    clips: Sequence[ScannedClip], seed: int, progress: Progress, hidden: tuple[int, int, int] = HIDDEN
) -> Localizer:
    """Train networks of this width; see `updater.benchmark.temporal.method.Method`."""
    rescaling = Rescaling(clips)
    features = rescaling.inputs
    overlaps = torch.stack([_overlaps(segments) for segments in rescaling.truths])
    edges = torch.stack([within(segments, 1.5 / _BINS) for segments in rescaling.truths])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = BoundaryMatching(features.shape[1], hidden)

        def loss(chosen: Tensor) -> Tensor:
            maps, edge_scores = network(features[chosen])
            of_edges = bce(edge_scores[:, 0], edges[chosen, 0]) + bce(edge_scores[:, 1], edges[chosen, 1])
            return of_edges + map_loss(maps, overlaps[chosen])

        descend(network, loss, len(features), _BATCH, _EPOCHS, _RATE, _FALLS_AFTER, progress)

    def localize(raw: NDArray[np.float32]) -> Localization:
        with torch.inference_mode():
            maps, edge_scores = network(rescaling.features(raw)[None])
        segments = proposals(maps[0].double().numpy(), edge_scores[0].double().numpy())
        kept = soft_nms(segments, _ALPHA, _BOUNDS) * [len(raw), len(raw), 1]
        return Localization(by_segments(kept, len(raw)), kept)

    return localize


def descend(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    items: int,
    batch: int,
    epochs: int,
    rate: float,
    falls_after: Sequence[int],
    progress: Progress,
) -> None:
    """Train by Adam on batches of items by chance; the rate falls to a tenth after some epochs."""
    optimiser = torch.optim.Adam(network.parameters(), rate, weight_decay=1e-4)
    falls = torch.optim.lr_scheduler.MultiStepLR(optimiser, falls_after)
    batches = math.ceil(items / batch)
    fit(
        network,
        in_epochs(lambda: torch.randperm(items), batch, epochs),
        loss,
        Descent(optimiser, epochs * batches, by_schedule(falls, batches)),
        progress=progress,
    )
    network.eval()


def map_loss(maps: Tensor, overlaps: Tensor) -> Tensor:
    """Return 10 · regression + classification, over the segments that lie within the clip.

    maps: float32 [B, 2, D, S]; overlaps: float32 [B, D, S], the IoU with the truth. In the regression high,
    middle and low overlaps weigh the same, as far as there are any.
    """
    output, truth = maps[..., _POSSIBLE], overlaps[..., _POSSIBLE]
    high, low = truth > _HIGH, truth <= _LOW
    kinds = (high, ~high & ~low, low)
    weights = sum((kind.float() / kind.sum().clamp_min(1) for kind in kinds), torch.zeros_like(truth))
    regression = (F.mse_loss(output[:, 1], truth, reduction="none") * weights).sum() / 3
    return 10 * regression + bce(output[:, 0], (truth > _SURE).float())


def proposals(maps: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the segments in 0..1 from likely starts to likely ends, those that end with the clip too.

    Their score is start · end · classification · regression.
    """
    starts, ends = (grid.ravel() for grid in np.meshgrid(peaks(edges[0]), peaks(edges[1]), indexing="ij"))
    starts, ends = starts[starts < ends], ends[starts < ends]
    scores = edges[0, starts] * edges[1, ends] * maps[:, ends - starts - 1, starts].prod(0)
    return np.stack([starts / _BINS, ends / _BINS, scores], 1)


def _overlaps(segments: NDArray[np.float64]) -> Tensor:
    """Return the best IoU of each segment of the grid with a true one, float32 [D, S]."""
    starts, lengths = np.meshgrid(np.arange(_BINS), np.arange(1, _BINS + 1))
    of_grid = np.stack([starts, starts + lengths], -1).reshape(-1, 2) / _BINS
    best = tiou(of_grid, segments).max(1, initial=0)
    return torch.from_numpy(best.reshape(_BINS, _BINS).astype(np.float32))
