"""The head over time: trained by binary cross-entropy by frame, over whole clips, calibrated and measured.

Figures of stretches are those of He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery
Analysis", sections 4.2 and I.1, by the rules of ActivityNet's detection and proposal tasks (Heilbron et al.
2015). For each video, `predicted` holds segments with their scores, [n, 3] of (first, end, score), and
`truth` the forged ones, [m, 2] of (first, end). They are half open, in one unit; a real video has no true
segment. Figures are 0..1. They raise ValueError for a segment that ends before it begins, a true one of no
length, and a number that is not finite.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from detector.model.scanner import MEMBERS, Scanner, over_time
from detector.second_pass.scan_look import Segments, best_score, stretches
from updater.measures import conformal_bound
from updater.progress import Steps, no_steps
from updater.records import FoundStretches
from updater.scan.clips import ScannedClip
from updater.training.fit import Descent, by_schedule, fit, in_epochs

EPOCHS = 10 * MEMBERS
"""of all members together, one after the other: each sees the clips a third as often"""
BATCH = 16
"""clips of a step"""
_RATE, _DECAY = 2e-3, 1e-2


def train_scanner(
    clips: Sequence[ScannedClip], seed: int, *, epochs: int = EPOCHS, progress: Steps = no_steps
) -> Scanner:
    """Train on clips, real ones among them; the same seed gives the same weights on one machine.

    The members are trained one after the other, for a third of the epochs each and at least one, by AdamW,
    its rate falling as half a cosine. Raises ValueError where no frame, or every frame, is forged.
    """
    forged = [torch.from_numpy(clip.is_forged).float()[:, None] for clip in clips]
    if not clips or not 0 < float(torch.cat(forged).mean()) < 1:
        raise ValueError("training needs forged frames and others")
    with torch.no_grad():
        seen = [over_time(torch.from_numpy(clip.features)) for clip in clips]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scanner = Scanner(clips[0].features.shape[1])
        scanner.standardise(torch.cat(seen))
        inputs = [scanner.standard(features) for features in seen]
        rng = np.random.default_rng(seed)
        member_epochs = max(1, epochs // MEMBERS)
        for number, member in enumerate(scanner.members):

            def report_member(done: int, total: int, before: int = number) -> None:
                progress(before * total + done, MEMBERS * total)

            _train(member, inputs, forged, rng, member_epochs, report_member)
    return scanner.eval()


def _train(
    member: nn.Module,
    inputs: Sequence[Tensor],
    forged: Sequence[Tensor],
    rng: np.random.Generator,
    epochs: int,
    progress: Steps,
) -> None:
    """Train one head."""
    optimiser = torch.optim.AdamW(member.parameters(), _RATE, weight_decay=_DECAY)
    steps = epochs * math.ceil(len(inputs) / BATCH)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)

    def loss(chosen: Tensor) -> Tensor:
        batch, inside = together([inputs[i] for i in chosen])
        truth, _ = together([forged[i] for i in chosen])
        losses = F.binary_cross_entropy_with_logits(member(batch, inside), truth[..., 0], reduction="none")
        return (losses * inside).sum() / inside.sum()

    fit(
        member.train(),
        in_epochs(lambda: torch.from_numpy(rng.permutation(len(inputs))), BATCH, epochs),
        loss,
        Descent(optimiser, steps, by_schedule(falling)),
        progress=progress,
    )


def together(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack float32 [T_i, C] to [B, T, C], zero beyond an end; and the mask of frames, float32 [B, T]."""
    stacked = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    inside = (torch.arange(stacked.shape[1]) < lengths[:, None]).float()
    return stacked, inside


def frame_scores(scanner: Scanner, clip: ScannedClip) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a scanner's scores of a clip's frames, float64 [T] in 0..1."""
    with torch.inference_mode():
        answer = scanner(torch.from_numpy(clip.features))["frame_score"]
    scores: np.ndarray[tuple[int], np.dtype[np.float64]] = answer.double().numpy()
    return scores


MAX_REALS_TOLD = 0.05
FOUND_FROM = 0.5
"""tIoU with a true stretch, from which on it counts as found"""
_LEAST = 0.01


def threshold_for(best: Sequence[float]) -> float:
    """Return the lowest threshold that few enough real clips reach, in 0.01..1.

    best: the score of each clip's best stretch, at least one. One more real clip of their kind reaches it
    with a chance of at most 5 %, from 19 clips on; see `updater.measures.conformal_bound`.
    """
    return float(np.clip(np.nextafter(conformal_bound(best, MAX_REALS_TOLD), 2), _LEAST, 1))


def threshold_of(simulated: Sequence[Segments], videos: Sequence[Segments]) -> float:
    """Return the higher threshold of two kinds of real clips, by a scanner's scores.

    Simulated ones, at least one; and real videos, if there are any.
    """
    return max(threshold_for([best_score(runs) for runs in some]) for some in (simulated, videos) if some)


def detect(scanner: Scanner, clips: Sequence[ScannedClip]) -> list[Segments]:
    return [stretches(frame_scores(scanner, clip)) for clip in clips]


def false_alarm_rate(segments: Sequence[Segments], threshold: float) -> float:
    """Return the share of clips with a stretch that is told."""
    return float(np.mean([best_score(segment) >= threshold for segment in segments]))


def hits(segments: NDArray[np.float64], truth: ArrayLike) -> NDArray[np.bool_]:
    """Return which true stretches, [m, 2], some told one meets, bool [m]; segments: [n, 2] in one unit."""
    return np.asarray((tiou(segments, truth) >= FOUND_FROM).any(0))


def evaluate(scanner: Scanner, clips: Sequence[ScannedClip], threshold: float) -> FoundStretches:
    """Measure a scanner on held-back clips, some real and some forged."""
    segments, truth = detect(scanner, clips), [clip.segments for clip in clips]
    real = [rows for rows, true in zip(segments, truth, strict=True) if not len(true)]
    met = [hits(rows[rows[:, 2] >= threshold, :2], true) for rows, true in zip(segments, truth, strict=True)]
    return FoundStretches(
        reals=len(real),
        reals_told=false_alarm_rate(real, threshold),
        forged=len(clips) - len(real),
        stretches=sum(map(len, truth)),
        found=float(np.concatenate(met).mean()),
        ap_50=ap_at(segments, truth, 0.5),
    )


# Ratios of whole frames reach a threshold exactly, and rounding must not decide on which side they are.
_SLACK = 1e-9


class Overlaps(NamedTuple):
    """The n predictions of a video by falling score, equal ones as they came, beside its m true segments."""

    scores: NDArray[np.float64]
    tiou: NDArray[np.float64]
    """[n, m]"""


def ap_at(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike], threshold: float) -> float:
    """Return `ap@t`: the interpolated average precision at a threshold of tIoU.

    The predictions of all videos are taken by falling score. Each takes the free true segment of its video
    with the highest tIoU, if that is at least the threshold; else it is false. A true segment is taken
    once. Of equal scores the first video's, and in it the first, comes first. nan where no video has a true
    segment.
    """
    videos = overlaps(predicted, truth)
    if not (total := sum(video.tiou.shape[1] for video in videos)):
        return math.nan
    # True segments belong to a video, so that what is taken within each does not depend on the others.
    hits = np.concatenate([_taking(video.tiou, threshold) for video in videos])
    hits = hits[np.argsort(-np.concatenate([video.scores for video in videos]), kind="stable")]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    interpolated = np.maximum.accumulate(precision[::-1])[::-1]
    return float(interpolated[hits].sum() / total)


def tiou(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Return the temporal intersection over union of every segment of a with every one of b, float64 [n, m].

    a, b: [n, 2] and [m, 2] of (first, end); 0 where both are of no length.
    """
    rows, columns = (np.asarray(segments, np.float64).reshape(-1, 2) for segments in (a, b))
    rows = rows[:, None]
    common = np.minimum(rows[..., 1], columns[:, 1]) - np.maximum(rows[..., 0], columns[:, 0])
    common = np.maximum(common, 0)
    union = (rows[..., 1] - rows[..., 0]) + (columns[:, 1] - columns[:, 0]) - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0))


def overlaps(predicted: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> list[Overlaps]:
    """Return how the segments of each video overlap."""
    videos = []
    for proposals, segments in zip(predicted, truth, strict=True):
        runs, true = checked_segments(proposals, 3), checked_segments(segments, 2)
        if (true[:, 1] <= true[:, 0]).any():
            raise ValueError("a true segment is of no length")
        runs = runs[np.argsort(-runs[:, 2], kind="stable")]
        videos.append(Overlaps(runs[:, 2], tiou(runs[:, :2], true)))
    return videos


def checked_segments(values: ArrayLike, columns: int) -> NDArray[np.float64]:
    """Return segments as float64 [n, columns]. Raises ValueError as this module says."""
    segments = np.asarray(values, np.float64)
    segments = segments.reshape(-1, columns) if not segments.size else segments
    if segments.ndim != 2 or segments.shape[1] != columns or not np.isfinite(segments).all():
        raise ValueError(f"segments must be finite and [n, {columns}], not {segments.shape}")
    if (segments[:, 1] < segments[:, 0]).any():
        raise ValueError("a segment ends before it begins")
    return segments


def reaches(overlap: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    return overlap >= threshold - _SLACK


def _taking(overlap: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Return which of a video's predictions, by falling score, take a true segment, bool [n]."""
    free = np.where(reaches(overlap, threshold), overlap, 0)
    taken = np.zeros(len(free), bool)
    for number in np.flatnonzero(free.any(1)):
        if free[number].any():
            taken[number] = True
            free[:, free[number].argmax()] = 0
    return taken
