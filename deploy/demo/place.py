"""What the demonstration may say of where pictures are forged: its maps beside the truth. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from deploy.client.map_picture import cells_of_map
from detector.looks.map_look import cells_of
from detector.records import ForgeryMap, Verdict
from memory.records import REAL
from updater.localizer.calibrate import FORGED_FROM, MARKED_SHARE

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
    """A picture that is forged in a part, and what was said of it."""

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
        small=regions([one for one in forged if one.area < SMALL_AREA]),
        large=regions([one for one in forged if one.area >= SMALL_AREA]),
        reals=len(reals),
        reals_marked=sum(one.map is not None and is_marked(one.map) for one in reals),
    )


def regions(pictures: Sequence[Answered]) -> Regions:
    """Count what was said of pictures that are forged in a part, all of one size."""
    mapped = [(one, one.verdict.map) for one in pictures if one.verdict.map is not None]
    overlaps = [
        [overlap(found, other.mask) >= LEAST_IOU for other in pictures if other is not one]
        for one, found in mapped
    ]
    return Regions(
        n=len(pictures),
        not_real=sum(one.verdict.label != REAL for one in pictures),
        marked=sum(is_marked(found) for _, found in mapped),
        found=sum(overlap(found, one.mask) >= LEAST_IOU for one, found in mapped),
        by_chance=sum(float(np.mean(one)) if one else 0.0 for one in overlaps),
    )


def is_marked(found: ForgeryMap) -> bool:
    """Whether more than 2 % of a map's cells are marked."""
    return found.share > MARKED_SHARE


def overlap(found: ForgeryMap, mask: NDArray[np.uint8]) -> float:
    """Return the intersection over the union of the cells that are marked and those that are forged."""
    cells = cells_of_map(found)
    marked = cells >= found.threshold * 255
    forged = forged_cells(found, mask, (cells.shape[0], cells.shape[1]))
    either = int((marked | forged).sum())
    return int((marked & forged).sum()) / either if either else 0.0


def forged_cells(found: ForgeryMap, mask: NDArray[np.uint8], shape: tuple[int, int]) -> Cells:
    """Return which cells of a map are forged, by the mask of the whole picture."""
    left, top, width, height = found.part
    seen = mask[top : top + height, left : left + width].astype(np.float32) / np.float32(255)
    forged: Cells = cells_of(seen, shape) >= FORGED_FROM
    return forged
