"""The second looks at a video: when it is forged, frame by frame in one place; and its stretch's verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detector.records import Scan, Segment
from detector.release.artifact import Artifact
from detector.release.contract import request_for
from detector.release.crop_graphs import FRAME_SCORE, ScanContract
from detector.release.tensors import CROPS
from detector.second_pass.scan_places import FEWEST, places_along
from detector.verdicts import Ask, JudgedItem, Origin, build, evidence_of
from ingest.records import Decoded, MediaPlan, PlacesPlan, Region
from ingest.sandbox.child import MAX_DECODE_PROCESSOR_S
from ingest.sandbox.decode import sample

# Of an item's processor time that is left: a stretch is looked at after the scan, and a frame that the first
# look did not see may take longer than those that it saw.
_SHARE = 0.5
# frames: more than 5 s of a processor decode
_MANY = 1_000_000
# of what a verdict keeps: of the scores, and of seconds
_DECIMALS = 3


@dataclass(frozen=True)
class ScanLook:
    """Scans each video by the release's scanner.

    Also one that is called real: the mean of a few frames says so, and a forged stretch hardly moves that.
    """

    contract: ScanContract
    ask: Ask
    adds: str = "scan"
    is_optional: bool = True
    most_crops: int = 0

    def looks_at(self, item: JudgedItem) -> bool:
        return item.clip is not None

    def was_missed(self, item: JudgedItem) -> bool:
        verdict = item.verdict
        return self.looks_at(item) and verdict.scan is None and self.adds not in verdict.left_out

    def plan(self, item: JudgedItem) -> PlacesPlan:
        """Return one crop of each frame that is scanned: on the largest face, or where the clip says.

        How many frames follows from what one took at the first look. Raises ValueError for what is no video,
        and where a frame takes so much that too few could be scanned.
        """
        if item.clip is None:
            raise ValueError("only a video is scanned")
        verdict, contract, clip = item.verdict, self.contract, item.clip
        left_s = max(0.0, MAX_DECODE_PROCESSOR_S - item.processor_s)
        most = int(min(_SHARE * left_s / max(clip.frame_s, 1e-6), _MANY))
        if most < min(FEWEST, clip.length):
            raise ValueError(f"a frame takes {clip.frame_s:.2f} s of a processor: {most} could be decoded")
        plan = places_along(
            verdict.regions,
            (verdict.width, verdict.height),
            clip.length,
            clip.elsewhere,
            contract.crop_px,
            min(contract.frames, most),
        )
        return plan.model_copy(update={"most_decoded": most})

    def add_results(self, items: Sequence[JudgedItem], decoded: Sequence[Decoded]) -> list[JudgedItem]:
        """Return a video with its scan and its segments.

        Raises ValueError for scores that are none, and where too few frames could be decoded.
        """
        (item,), (clip,) = items, decoded
        wanted = min(self.contract.frames, item.clip.length if item.clip else clip.length)
        if len(clip.regions) < min(FEWEST, wanted):
            raise ValueError(f"{len(clip.regions)} of {wanted} frames could be decoded")
        scores = self.ask({CROPS: clip.crops})[FRAME_SCORE]
        if scores.shape != (len(clip.regions),) or not np.isfinite(scores).all():
            raise ValueError("the scanner does not score each frame")
        scan, segments = scan_of(scores, clip.regions, clip.length, self.contract.threshold)
        scan = scan.model_copy(update={"left_out": max(0, wanted - scan.frames)})
        return [replace(item, verdict=item.verdict.model_copy(update={"scan": scan, "segments": segments}))]


def scan_of(
    scores: NDArray[np.float32], regions: tuple[Region, ...], length: int, threshold: float
) -> tuple[Scan, tuple[Segment, ...]]:
    """Return a verdict's scores of a video's scanned frames, float32 [n], and its stretches.

    regions: what was seen of each frame, in order; length: all frames of the video. The stretches are found
    in the scores as the verdict keeps them, so that whoever has it finds the same. Each scanned frame stands
    for those nearest to it, an end lies in the middle between two of them; and the first and the last stand
    for no more beyond them than half a step, for what is there may not have been reached.
    """
    kept = np.round(scores.astype(np.float64), _DECIMALS)
    numbers = np.array([region.frame for region in regions], np.float64)
    times = np.maximum.accumulate([region.time_s or 0.0 for region in regions])
    frames, seconds = numbers[-1] - numbers[0], times[-1] - times[0]
    half = frames / (len(numbers) - 1) / 2 if frames else length
    between = [int(frame) for frame in (numbers[:-1] + numbers[1:] + 1) // 2]
    ends = [max(0, int(numbers[0] - half + 0.5)), *between, min(length, int(numbers[-1] + half + 0.5))]

    def when(frame: int) -> float:
        inside = float(np.interp(frame, numbers, times))
        beyond = min(frame - numbers[0], 0.0) + max(frame - numbers[-1], 0.0)
        return round(max(0.0, inside + (beyond * seconds / frames if frames else 0.0)), _DECIMALS)

    segments = tuple(
        Segment(
            start_s=when(ends[int(first)]),
            end_s=when(ends[int(end)]),
            frames=(ends[int(first)], ends[int(end)] - 1),
            score=float(score),
            box=regions[(int(first) + int(end) - 1) // 2].box,
        )
        for first, end, score in stretches(kept)
        if score >= threshold
    )
    scan = Scan(
        frames=len(kept),
        step_s=float(seconds / max(1, len(kept) - 1)),
        threshold=threshold,
        times_s=tuple(round(float(time_s), _DECIMALS) for time_s in times),
        scores=tuple(float(score) for score in kept),
    )
    return scan, segments


@dataclass(frozen=True)
class StretchLook:
    """Judges a video anew, by the surest of its stretches as if there were nothing else.

    Few of the frames that the first look sampled lie in a short stretch, so their mean says little of it. The
    video is called what its stretch is called, and unknown where that would be real: scanner and gate do not
    agree, so a person has to look. The evidence, which such a person sees, is the stretch then.
    """

    artifact: Artifact
    ask: Ask
    adds: str = "stretch"
    is_optional: bool = False
    most_crops: int = 0

    def looks_at(self, item: JudgedItem) -> bool:
        return item.verdict.label == "real" and bool(item.verdict.segments)

    def was_missed(self, item: JudgedItem) -> bool:
        return self.looks_at(item)

    def plan(self, item: JudgedItem) -> MediaPlan:
        """Return the release's own plan for frames of the stretch. Raises ValueError where none is told."""
        if not item.verdict.segments:
            raise ValueError("no stretch is told")
        first, last = item.verdict.segments[0].frames
        plan = self.artifact.manifest.contract.media_plan
        frames = tuple(first + number for number in sample(last + 1 - first, plan.crops.frames))
        return plan.model_copy(update={"frames": frames})

    def add_results(self, items: Sequence[JudgedItem], decoded: Sequence[Decoded]) -> list[JudgedItem]:
        """Return a video with its stretch's verdict; its media and stretches stay."""
        (item,) = items
        output = self.ask(request_for(decoded, self.artifact.manifest.contract))
        before = item.verdict
        origin = Origin(before.id, before.item, before.timings)
        (judged,) = build([origin], decoded, output, self.artifact, suspected=True)
        names = ("width", "height", "scan", "segments", "left_out", "provenance")
        kept = {name: getattr(before, name) for name in names}
        (evidence,) = evidence_of(decoded, output)
        return [replace(item, verdict=judged.model_copy(update=kept), evidence=evidence)]


Segments = NDArray[np.float64]

THRESHOLDS = (0.15, 0.25, 0.35, 0.5, 0.65, 0.8)
TOLERANCES = (1, 3)
SHORTEST = 5
MOST = 10
# frames on each side that a segment is held against
_BESIDE = 5
_DECAY = 0.5


def stretches(scores: ArrayLike) -> Segments:
    """Return at most `MOST` segments of a video by the scores of its frames, [T] in 0..1, 1 for forged.

    Runs are taken at several thresholds, with gaps closed as far as each tolerance allows. A segment's score
    is the mean inside of it times one minus the mean just outside: so of runs about one stretch, that with
    the sharpest ends wins. Soft-NMS then lowers what overlaps a better one.
    """
    of_frames = np.asarray(scores, np.float64)
    candidates = {
        run
        for threshold in THRESHOLDS
        for tolerance in TOLERANCES
        for run in runs(of_frames >= threshold, tolerance, SHORTEST)
    }
    proposed = [(first, end, _standing_out(of_frames, first, end)) for first, end in sorted(candidates)]
    return soft_nms(np.array(proposed, np.float64).reshape(-1, 3), _DECAY)


def runs(forged: NDArray[np.bool_], tolerance: int, shortest: int) -> list[tuple[int, int]]:
    """Return the maximal runs of frames, (first, end) each, that begin and end with a forged one.

    forged: bool [T]. Within a run at most `tolerance` frames in a row are not forged, and it has at least
    `shortest` frames.
    """
    places = np.flatnonzero(forged)
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) > tolerance + 1) + 1
    parts = np.split(places, cuts)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if part[-1] + 1 - part[0] >= max(1, shortest)]


def soft_nms(
    segments: Segments,
    alpha: float,
    bounds: tuple[float, float] = (0.0, 0.0),
    length: float = 1.0,
    most: int = MOST,
) -> Segments:
    """Lower the scores of segments that overlap better ones; return the `most` best that are left.

    Bodla et al. 2017, "Soft-NMS": the score is multiplied by exp(-tIoU² / alpha), where the tIoU exceeds a
    bound. Of segments as long as `length` the bound is the second of `bounds`, of shorter ones by so much
    less, down to the first for one of no length (Lin et al. 2018, "BSN", in its code).
    """
    left = np.array(segments, np.float64).reshape(-1, 3)
    kept: list[NDArray[np.float64]] = []
    while len(left) and len(kept) < most:
        at = int(left[:, 2].argmax())
        best = left[at]
        kept.append(best.copy())
        left = np.delete(left, at, axis=0)
        overlap = _tiou(best, left)
        bound = bounds[0] + (bounds[1] - bounds[0]) * (best[1] - best[0]) / length
        left[:, 2] *= np.where(overlap > bound, np.exp(-(overlap**2) / alpha), 1)
    return np.array(kept, np.float64).reshape(-1, 3)


def best_score(segments: Segments) -> float:
    """Return the score of the best segment; 0 where there is none."""
    return float(segments[:, 2].max(initial=0))


def _standing_out(scores: NDArray[np.float64], first: int, end: int) -> float:
    beside: Sequence[float] = [*scores[max(0, first - _BESIDE) : first], *scores[end : end + _BESIDE]]
    return float(scores[first:end].mean()) * (1 - (float(np.mean(beside)) if beside else 0.0))


def _tiou(segment: NDArray[np.float64], others: Segments) -> NDArray[np.float64]:
    common = np.maximum(np.minimum(segment[1], others[:, 1]) - np.maximum(segment[0], others[:, 0]), 0)
    union = (segment[1] - segment[0]) + (others[:, 1] - others[:, 0]) - common
    return np.asarray(common / np.maximum(union, 1e-12))
