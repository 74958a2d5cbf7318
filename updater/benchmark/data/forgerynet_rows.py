"""A line of ForgeryNet's lists, read: what it names, its directory, and which frames are forged.

    image_list.txt   PATH BINARY TRIPLE SIXTEEN
    video_list.txt   N PATH (START COUNT FLAG)×N BINARY TRIPLE SIXTEEN

The number of the directory in PATH gives all labels: columns of published lists contradict it, and the
authors say that it counts. A stretch of a video is the frames START … START + COUNT - 1, forged where FLAG
is 1. Stretches follow on one another, but need not cover the file: what is outside of them is not labelled.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from updater.benchmark.data.entries import Segment
from updater.benchmark.data.forgerynet_classes import APPROACHES, FORGED_THROUGHOUT, REAL_SOURCES, classes_of

Medium = Literal["image", "video"]

# The first folder that is a number: a hash that follows may consist of digits too.
_DIRECTORY = re.compile(r"(?:|.*?/)(([0-9]+)/.+)")
_NUMBERS = {str(number): number for number in (*APPROACHES, *REAL_SOURCES)}


class RowError(Exception):
    """A row that cannot be used; its text ends a sentence that begins with how many there are."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a list, its labels by its directory."""

    path: str
    directory: int
    inside: str
    """the path from the directory on"""
    contradicted: bool
    """whether the label columns, or the flags of the stretches, say another thing than the directory"""
    segments: tuple[Segment, ...] = ()
    annotated: Segment | None = None


def place_of(path: str) -> tuple[int, str]:
    """Return the directory that a path names first, and the path from it on. Raises RowError."""
    found = _DIRECTORY.fullmatch(path)
    if found is None or found[2] not in _NUMBERS:
        raise RowError("rows name no directory from 1 to 19, and are left out")
    return _NUMBERS[found[2]], found[1]


def row_of(line: str, medium: Medium) -> Row:
    """Return what a line says. Raises RowError."""
    fields = line.replace("\\", "/").split()
    try:
        if medium == "image":
            path, *numbers = fields[0], *map(int, fields[1:])
            count = 0
        else:
            path, *numbers = fields[1], *map(int, fields[2:])
            count = int(fields[0])
    except (ValueError, IndexError):
        raise RowError("rows are not of their list's form, and are left out") from None
    if count < 0 or len(numbers) != 3 * count + 3 or any(flag not in (0, 1) for flag in numbers[2:-3:3]):
        raise RowError("rows are not of their list's form, and are left out")
    directory, inside = place_of(path)
    stretches = [(numbers[i], numbers[i + 1], numbers[i + 2] == 1) for i in range(0, 3 * count, 3)]
    forged, annotated = _checked(stretches)
    contradicted = tuple(numbers[-3:]) != classes_of(directory)
    if directory in REAL_SOURCES:
        return Row(path, directory, inside, contradicted or bool(forged), (), annotated)
    whole = directory in FORGED_THROUGHOUT and len(forged) == len(stretches)
    if whole or medium == "image":
        return Row(path, directory, inside, contradicted)
    if not forged:
        # Where nothing is said to be forged in a forged video, its stretches are worth nothing.
        return Row(path, directory, inside, contradicted=True)
    return Row(path, directory, inside, contradicted, forged, annotated)


def _checked(stretches: Sequence[tuple[int, int, bool]]) -> tuple[tuple[Segment, ...], Segment | None]:
    """Return the forged stretches and the frames that all of them cover. Raises RowError."""
    found = [Segment(start, start + count) for start, count, _ in stretches]
    if any(first < 0 or end <= first for first, end in found) or any(
        before.end != after.first for before, after in pairwise(found)
    ):
        raise RowError("rows have stretches that overlap, leave a gap or are of no length, and are left out")
    forged = tuple(one for one, (_, _, flag) in zip(found, stretches, strict=True) if flag)
    return forged, Segment(found[0].first, found[-1].end) if found else None
