"""The demonstration's result on where and when media is forged: predictions beside the truth. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from deploy.client.pictures import cells_of_map
from detector.records import ForgeryMap, Verdict
from detector.second_pass.map_look import cells_of
from memory.records import REAL
from updater.localizer.calibrate import FORGED_FROM, MARKED_SHARE
from updater.scan.clips import Stretch
from updater.scan.training import MAX_REALS_TOLD, hits

LEAST_IOU = 0.3
SMALL_AREA = 0.15

Cells = NDArray[np.bool_]


class Regions(BaseModel):
    """Pictures that are forged in a part: how many, and of them, how many passed each hurdle.

    found: the marked cells and the forged ones overlap by an intersection over union of LEAST_IOU or more.
    by_chance: how many would be found, on average, had each map been drawn of another of these pictures.
    """

    n: int
    not_real: int
    marked: int
    found: int
    by_chance: float


class PlaceReport(BaseModel):
    """Forged regions by how much of the picture they cover, and the real pictures that a map marks."""

    small: Regions
    large: Regions
    reals: int
    reals_marked: int


@dataclass(frozen=True)
class Answered:
    """A picture that is forged in a part, and its verdict."""

    verdict: Verdict
    mask: NDArray[np.uint8]
    """[H, W], 0..255: how much of each pixel is forged"""

    @property
    def area(self) -> float:
        """How much of the picture is forged."""
        return float(self.mask.mean()) / 255


def place_report(forged: Sequence[Answered], reals: Iterable[Verdict]) -> PlaceReport:
    """Count the regions of pictures that are forged in a part, all of one size, and the marked reals."""
    reals = list(reals)
    return PlaceReport(
        small=regions([part for part in forged if part.area < SMALL_AREA]),
        large=regions([part for part in forged if part.area >= SMALL_AREA]),
        reals=len(reals),
        reals_marked=sum(real.map is not None and is_marked(real.map) for real in reals),
    )


def regions(pictures: Sequence[Answered]) -> Regions:
    """Count the verdicts on pictures that are forged in a part, all of one size."""
    mapped = [(picture, picture.verdict.map) for picture in pictures if picture.verdict.map is not None]
    overlaps = [
        [overlap(map_, other.mask) >= LEAST_IOU for other in pictures if other is not part]
        for part, map_ in mapped
    ]
    return Regions(
        n=len(pictures),
        not_real=sum(picture.verdict.label != REAL for picture in pictures),
        marked=sum(is_marked(map_) for _, map_ in mapped),
        found=sum(overlap(map_, part.mask) >= LEAST_IOU for part, map_ in mapped),
        by_chance=sum(float(np.mean(part)) if part else 0.0 for part in overlaps),
    )


def is_marked(map_: ForgeryMap) -> bool:
    """Whether more than 2 % of a map's cells are marked."""
    return map_.share > MARKED_SHARE


def overlap(map_: ForgeryMap, mask: NDArray[np.uint8]) -> float:
    """Return the intersection over the union of the cells that are marked and those that are forged."""
    cells = cells_of_map(map_)
    marked = cells >= map_.threshold * 255
    forged = forged_cells(map_, mask, (cells.shape[0], cells.shape[1]))
    either = int((marked | forged).sum())
    return int((marked & forged).sum()) / either if either else 0.0


def forged_cells(map_: ForgeryMap, mask: NDArray[np.uint8], shape: tuple[int, int]) -> Cells:
    """Return which cells of a map are forged, by the mask of the whole picture."""
    left, top, width, height = map_.part
    seen = mask[top : top + height, left : left + width].astype(np.float32) / np.float32(255)
    forged: Cells = cells_of(seen, shape) >= FORGED_FROM
    return forged


LEAST_FOUND = 0.5


@dataclass(frozen=True)
class AnsweredClip:
    """A clip that was sent, and its verdict. family: its truth, or "real"."""

    verdict: Verdict
    family: str
    truth: tuple[Stretch, ...]
    """what of it is forged, in frames; nothing of a real clip"""


class LocatedClips(BaseModel):
    """Clips of one kind, and what was told of them.

    stretches: how many are forged in them; found: of those, with how many a told one has a temporal IoU of
    0.5 or more. by_chance: how many would be found, on average, had each clip's stretches been told of
    another of these clips. segments: how many were told, right or wrong.
    """

    clips: int
    not_real: int
    unknown: int
    with_segment: int
    segments: int
    stretches: int
    found: int
    by_chance: float


class WhenReport(BaseModel):
    """Real clips, all forged clips, and those of each family."""

    reals: LocatedClips
    forged: LocatedClips
    families: dict[str, LocatedClips]


def when_report(clips: Sequence[AnsweredClip]) -> WhenReport:
    """Count what was told of clips, all of one length and some forged."""
    forged = [clip for clip in clips if clip.family != REAL]
    return WhenReport(
        reals=count_located([clip for clip in clips if clip.family == REAL]),
        forged=count_located(forged),
        families={
            family: count_located([item for item in forged if item.family == family])
            for family in dict.fromkeys(item.family for item in forged)
        },
    )


def aims(report: WhenReport) -> dict[str, bool]:
    """Return the aims for clips, and whether each was reached.

    Where one real clip in 20 is told in the long run, more than one of 20 is in one run of four.
    """
    reals, forged = report.reals, report.forged
    return {
        f"a stretch told in at most {MAX_REALS_TOLD:.0%} of {reals.clips} real clips": (
            reals.with_segment <= MAX_REALS_TOLD * reals.clips
        ),
        f"{LEAST_FOUND:.0%} of {forged.stretches} forged stretches found": (
            forged.found >= LEAST_FOUND * forged.stretches
        ),
    }


def count_located(clips: Sequence[AnsweredClip]) -> LocatedClips:
    """Count the segments of clips, all of one length."""
    spans = [segments_of(clip.verdict) for clip in clips]
    # Of each pair of clips: what is told of the one, held against the truth of the other.
    met = [[int(hits(segments, clip.truth).sum()) for segments in spans] for clip in clips]
    others = len(clips) - 1
    return LocatedClips(
        clips=len(clips),
        not_real=sum(clip.verdict.label != REAL for clip in clips),
        unknown=sum(clip.verdict.label == "unknown" for clip in clips),
        with_segment=sum(len(segments) > 0 for segments in spans),
        segments=sum(map(len, spans)),
        stretches=sum(len(clip.truth) for clip in clips),
        found=sum(row[place] for place, row in enumerate(met)),
        by_chance=sum(sum(row) - row[place] for place, row in enumerate(met)) / others if others > 0 else 0.0,
    )


def segments_of(verdict: Verdict) -> NDArray[np.float64]:
    """Return a verdict's forged segments, float64 [n, 2], half open, in frames."""
    ends = [(segment.frames[0], segment.frames[1] + 1) for segment in verdict.segments or ()]
    return np.array(ends, np.float64).reshape(-1, 2)
