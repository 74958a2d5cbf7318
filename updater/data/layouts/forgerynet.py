"""ForgeryNet's layout: numbered directories below Training and Validation, and lists of their files.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis". The folders of a
directory are named by hashes whose meaning was not published; the first of them is taken for the group. Maps
lie below spatial_localize, under the names of their pictures from the directory on. Labels of Test were never
published; where a Test is labelled, as in what only has the layout, it is read too.

    image_list.txt   PATH BINARY TRIPLE SIXTEEN
    video_list.txt   N PATH (START COUNT FLAG)×N BINARY TRIPLE SIXTEEN

The number of the directory in PATH gives all labels: columns of published lists contradict it, and the
authors say that it counts. A stretch of a video is the frames START … START + COUNT - 1, forged where FLAG
is 1. Stretches follow on one another, but need not cover the file: what is outside of them is not labelled.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, get_args

from memory.records import REAL
from updater.data.layouts.entries import Entry, Extent, LayoutError, Listing, Split
from updater.data.layouts.listed import (
    MISSING,
    Tally,
    below,
    is_there,
    kept_apart,
    lines_of,
    refuse_another_release,
    subfolders,
    together,
)

Medium = Literal["image", "video"]

Kind = Literal["remained", "replaced"]
"""what becomes of the identity: classes 1 and 2 of three"""


class Approach(NamedTuple):
    """A way of forging; its directory is its class of sixteen."""

    name: str
    kind: Kind
    in_videos: bool


APPROACHES: dict[int, Approach] = {
    1: Approach("FaceShifter", "replaced", True),
    2: Approach("FS-GAN", "replaced", True),
    3: Approach("DeepFakes", "replaced", True),
    4: Approach("BlendFace", "replaced", True),
    5: Approach("MMReplacement", "replaced", True),
    6: Approach("DeepFakes-StarGAN2-Stack", "replaced", True),
    7: Approach("Talking-head Video", "remained", True),
    8: Approach("ATVG-Net", "remained", True),
    9: Approach("StarGAN2-BlendFace-Stack", "replaced", False),
    10: Approach("First Order Motion", "remained", False),
    11: Approach("StyleGAN2", "remained", False),
    12: Approach("MaskGAN", "remained", False),
    13: Approach("StarGAN2", "remained", False),
    14: Approach("SC-FEGAN", "remained", False),
    15: Approach("DiscoFaceGAN", "remained", False),
}
"""by the number of the directory, as the authors gave them to users of the data (section 3.2). That videos
have the names of pictures is known of 1, 2, 4 and 8, and inferred for the others."""
REAL_SOURCES: dict[int, str] = {16: "RAVDESS", 17: "CREMA-D", 18: "AVSpeech", 19: "VoxCeleb2"}
FORGED_THROUGHOUT = (2, 8)
"""directories of which every frame of a video is forged: the lists give no segments, or no row at all"""

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
    segments: tuple[Extent, ...] = ()
    annotated: Extent | None = None


def place_of(path: str) -> tuple[int, str]:
    """Return the directory that a path names first, and the path from it on. Raises RowError."""
    match = _DIRECTORY.fullmatch(path)
    if match is None or match[2] not in _NUMBERS:
        raise RowError("rows name no directory from 1 to 19, and are left out")
    return _NUMBERS[match[2]], match[1]


def row_of(line: str, medium: Medium) -> Row:
    """Return the row of a line. Raises RowError."""
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
    forged, annotated = _check(stretches)
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


def _check(stretches: Sequence[tuple[int, int, bool]]) -> tuple[tuple[Extent, ...], Extent | None]:
    """Return the forged stretches and the frames that all of them cover. Raises RowError."""
    extents = [Extent(start, start + count) for start, count, _ in stretches]
    if any(first < 0 or end <= first for first, end in extents) or any(
        before.end != after.first for before, after in pairwise(extents)
    ):
        raise RowError("rows have stretches that overlap, leave a gap or are of no length, and are left out")
    forged = tuple(extent for extent, (_, _, flag) in zip(extents, stretches, strict=True) if flag)
    return forged, Extent(extents[0].first, extents[-1].end) if extents else None


_PARTS: dict[str, Split] = {"Training": "train", "Validation": "val", "Test": "test"}
_MAPS = "spatial_localize"
_MAP_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv", ".mov", ".webm")


def load_both(folder: Path) -> Listing:
    """List pictures and videos, as far as there are lists. Raises what `load_forgerynet` raises."""
    present = [
        medium
        for medium in get_args(Medium)
        if any(_list_in(folder / part, medium) is not None for part in _PARTS)
    ]
    return together("forgerynet", [load_forgerynet(folder, medium) for medium in present or ["image"]])


def load_forgerynet(folder: Path, medium: Medium) -> Listing:
    """List the pictures, or the videos, of every part that has a list.

    Raises LayoutError where no part has one, where its paths begin nowhere below its part, and where fewer
    than half of its files are there. Whatever else is wrong with a row leaves it out, and is counted.
    """
    lists = {part: path for part in _PARTS if (path := _list_in(folder / part, medium)) is not None}
    if not lists:
        raise LayoutError(
            f"{folder} has no Training/{medium}_list.txt and no Validation/{medium}_list.txt: name the folder"
            " that holds Training and Validation"
        )
    tally = Tally()
    entries: list[Entry] = []
    for part, rows in lists.items():
        entries += _entries(folder / part, rows, _PARTS[part], medium, tally)
    return Listing(f"forgerynet-{medium}", kept_apart(entries, tally), tally.notes())


def _list_in(top: Path, medium: Medium) -> Path | None:
    name = f"{medium}_list.txt"
    return next((path for path in (top / name, *sorted(top.glob(f"*/{name}"))) if path.is_file()), None)


def _entries(top: Path, rows: Path, split: Split, medium: Medium, tally: Tally) -> Iterator[Entry]:
    """Yield the present entries of one list, and the videos of directories that it passes over."""
    files = _Places(top, *(place for place in subfolders(top) if place.name != _MAPS))
    maps = _Places(*(place for place in (top / _MAPS, *sorted(top.glob(f"*/{_MAPS}"))) if place.is_dir()))
    seen: set[str] = set()
    directories: set[int] = set()
    there = 0
    for row in _rows(rows, medium, tally):
        if row.path in seen:
            tally.add("rows name a file again, and are left out", row.path)
            continue
        seen.add(row.path)
        directories.add(row.directory)
        if (path := files.find(row.path)) is None:
            tally.add(MISSING, row.path)
            continue
        there += 1
        if row.contradicted:
            tally.add("rows contradict their directory in a label or a flag; the directory counts", row.path)
        mask = None
        if medium == "image" and row.directory in APPROACHES and (mask := _map_of(row, maps)) is None:
            tally.add(f"forged pictures have no map in {_MAPS}", row.path)
        yield _entry(row, path, split, mask)
    if seen and not files.any_begins:
        raise LayoutError(
            f"{rows} names {min(seen)}, and neither {top} nor a folder in it (image, image2, video) holds"
            f" {PurePosixPath(min(seen)).parts[0]}: unpack it there"
        )
    refuse_another_release(rows, there, len(seen))
    if medium == "video":
        for row, path in files.of_directories(set(FORGED_THROUGHOUT) - directories):
            tally.add("videos of directories 2 and 8, not in the list, are forged throughout", path)
            yield _entry(row, path, split, None)


def _rows(rows: Path, medium: Medium, tally: Tally) -> Iterator[Row]:
    for line in lines_of(rows):
        try:
            yield row_of(line, medium)
        except RowError as error:
            tally.add(str(error), f"{rows.parent.name}/{rows.name}: {line[:100]}")


class _Places:
    """Where paths of a list may begin: some folders and those in them, if they hold a path's first folder."""

    def __init__(self, *tops: Path) -> None:
        self._candidates = list(dict.fromkeys(place for top in tops for place in (top, *subfolders(top))))
        self._by_first: dict[str, list[Path]] = {}

    @property
    def any_begins(self) -> bool:
        """Whether any path that was looked for begins anywhere."""
        return any(self._by_first.values())

    def find(self, listed: str) -> Path | None:
        """Return the file that a list names; None where it is missing."""
        first = listed.partition("/")[0]
        if first not in self._by_first:
            candidates = ((place, below(place, first)) for place in self._candidates)
            self._by_first[first] = [place for place, begin in candidates if begin and begin.is_dir()]
        paths = (below(place, listed) for place in self._by_first[first])
        return next((path for path in paths if path is not None and is_there(path)), None)

    def of_directories(self, numbers: set[int]) -> Iterator[tuple[Row, Path]]:
        """Yield the videos in these directories, beside those that were found."""
        for first, places in self._by_first.items():
            for place in places:
                for number in sorted(numbers):
                    for path in sorted((place / first / str(number)).rglob("*")):
                        if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file():
                            listed = path.relative_to(place).as_posix()
                            inside = path.relative_to(place / first).as_posix()
                            yield Row(listed, number, inside, contradicted=False), path


def _map_of(row: Row, maps: _Places) -> Path | None:
    stem = PurePosixPath(row.inside).with_suffix("").as_posix()
    return next((path for suffix in _MAP_SUFFIXES if (path := maps.find(stem + suffix)) is not None), None)


def _entry(row: Row, path: Path, split: Split, mask: Path | None) -> Entry:
    approach = APPROACHES.get(row.directory)
    return Entry(
        path,
        label=int(approach is not None),
        family=approach.name if approach is not None else REAL,
        group=PurePosixPath(row.inside).parts[1],
        split=split,
        segments=row.segments,
        annotated=row.annotated,
        masks=(mask,) if mask is not None else (),
    )


def classes_of(directory: int) -> tuple[int, int, int]:
    """Return the classes of two, of three and of sixteen that a directory stands for; 0 is real.

    Raises KeyError for a number that no directory has.
    """
    if directory in REAL_SOURCES:
        return 0, 0, 0
    return 1, 1 if APPROACHES[directory].kind == "remained" else 2, directory
