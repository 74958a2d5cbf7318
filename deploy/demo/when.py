"""What the demonstration may say of when clips are forged: told stretches beside the truth. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from detector.records import Verdict
from memory.records import REAL
from updater.scan.calibrate import MAX_REALS_TOLD, found
from updater.scan.stretches import Stretch

LEAST_FOUND = 0.5


@dataclass(frozen=True)
class AnsweredClip:
    """A clip that was sent, and what was said of it. family: its truth, or "real"."""

    verdict: Verdict
    family: str
    truth: tuple[Stretch, ...]
    """what of it is forged, in frames; nothing of a real clip"""


class Told(BaseModel):
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

    reals: Told
    forged: Told
    families: dict[str, Told]


def when_report(clips: Sequence[AnsweredClip]) -> WhenReport:
    """Count what was told of clips, all of one length and some forged."""
    forged = [one for one in clips if one.family != REAL]
    return WhenReport(
        reals=told([one for one in clips if one.family == REAL]),
        forged=told(forged),
        families={
            family: told([one for one in forged if one.family == family])
            for family in dict.fromkeys(one.family for one in forged)
        },
    )


def aims(report: WhenReport) -> dict[str, bool]:
    """Return what is strived for in clips, and whether it was reached.

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


def told(clips: Sequence[AnsweredClip]) -> Told:
    """Count what was told of clips, all of one length."""
    said = [segments_of(one.verdict) for one in clips]
    # Of each pair of clips: what is told of the one, held against the truth of the other.
    met = [[int(found(segments, one.truth).sum()) for segments in said] for one in clips]
    others = len(clips) - 1
    return Told(
        clips=len(clips),
        not_real=sum(one.verdict.label != REAL for one in clips),
        unknown=sum(one.verdict.label == "unknown" for one in clips),
        with_segment=sum(len(segments) > 0 for segments in said),
        segments=sum(map(len, said)),
        stretches=sum(len(one.truth) for one in clips),
        found=sum(row[place] for place, row in enumerate(met)),
        by_chance=sum(sum(row) - row[place] for place, row in enumerate(met)) / others if others > 0 else 0.0,
    )


def segments_of(verdict: Verdict) -> NDArray[np.float64]:
    """Return what a verdict tells as forged, float64 [n, 2], half open, in frames."""
    ends = [(one.frames[0], one.frames[1] + 1) for one in verdict.segments or ()]
    return np.array(ends, np.float64).reshape(-1, 2)
