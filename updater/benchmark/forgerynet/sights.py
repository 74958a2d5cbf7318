"""Which files can be decoded, where the largest face of each picture is, and where it is forged.

A file that gives none is left out and counted. What is known of a file is kept by its path, size and time
of its last change.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from ingest.durable import make_folder
from ingest.sandbox.crops import Box
from ingest.sandbox.extract import find_faces
from ingest.settings import IngestSettings
from updater.benchmark.forgerynet.choices import Input
from updater.data.layouts.entries import Entry
from updater.data.layouts.listed import Tally
from updater.distortions.clip import ClipError
from updater.distortions.distortion import DistortionError
from updater.distortions.files import read_still
from updater.filters import Picture
from updater.training.processes import is_first, wait

MARGIN = 1.3
"""a face's box is enlarged by this about its middle"""
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")
"""of pictures and of maps, by Pillow's names; ForgeryNet's own are the first two"""
_FORMAT = "1"
_AT_A_TIME = 256

MAX_PIXELS = IngestSettings().max_pixels


@dataclass(frozen=True)
class Sample:
    """A file that can be decoded, and the part of a picture that is looked at; None: all of it."""

    entry: Entry
    box: Box | None = None
    frames: int = 1
    """of a video"""


def sights(
    entries: Sequence[Entry], kind: Input, cache: Path, tally: Tally, progress: Callable[[int, int], None]
) -> list[Sample]:
    """Return the entries whose pictures can be decoded. kind: native looks at all of a picture.

    Raises OSError where the cache cannot be written.
    """
    known = SampleDatabase(cache / f"sights-{kind}.sqlite")
    if is_first():
        known.complete([entry.path for entry in entries], lambda path: _look(path, kind), progress)
    wait()
    samples = []
    for entry, box in zip(entries, known.of([entry.path for entry in entries]), strict=True):
        if isinstance(box, str):
            tally.add("files cannot be decoded and are left out", f"{entry.path}: {box}")
        else:
            samples.append(Sample(entry, (box[0], box[1], box[2], box[3]) if box else None))
    return samples


def picture_of(path: Path) -> Picture:
    """Decode a picture, uint8 RGB [H, W, 3]. Raises DistortionError where it is none, and OSError."""
    return read_still(path, MAX_PIXELS).pixels


def square_about(face: Box, width: int, height: int) -> Box:
    """Return the square about a face's box × 1.3, moved inside the picture and no larger than that; px."""
    left, top, box_width, box_height = face
    side = min(round(MARGIN * max(box_width, box_height)), width, height)
    x = min(max(round(left + box_width / 2 - side / 2), 0), width - side)
    y = min(max(round(top + box_height / 2 - side / 2), 0), height - side)
    return x, y, side, side


def cut_to(box: Box | None, frames: Picture) -> Picture:
    """Cut frames, uint8 [..., H, W, C], to a box."""
    if box is None:
        return frames
    left, top, width, height = box
    return frames[..., top : top + height, left : left + width, :]


def resize(picture: Picture, width: int, height: int) -> Picture:
    """Scale uint8 RGB [H, W, 3], bilinearly; where it gets smaller over all that falls together."""
    if picture.shape[:2] == (height, width):
        return picture
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))


def _look(path: Path, kind: Input) -> list[int] | None:
    """Return the box to look at, None for all of a picture. Raises as `picture_of` does."""
    picture = picture_of(path)
    if kind == "native" or not (faces := find_faces(picture, 1)):
        return None
    return [int(edge) for edge in square_about(faces[0], picture.shape[1], picture.shape[0])]


class SampleDatabase:
    """Facts of files, in a database of one table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_folder(path.parent)

    def complete(
        self,
        paths: Sequence[Path],
        look: Callable[[Path], list[int] | None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Look at files that the database does not know as they are; of some it keeps the problem."""

        def facts_of(path: Path) -> list[int] | str | None:
            try:
                return look(path)
            except (ClipError, DistortionError) as error:
                return str(error).removeprefix(f"{path}").strip(": ")
            except OSError as error:
                return str(error.strerror)

        have = self._stored_digests()
        wanted = [(path, key) for path, key in zip(paths, map(_key, paths), strict=True) if key not in have]
        with closing(self._open_database()) as database, ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            for first in range(0, len(wanted), _AT_A_TIME):
                part = wanted[first : first + _AT_A_TIME]
                looks = threads.map(facts_of, [path for path, _ in part])
                rows = [(key, json.dumps(look)) for (_, key), look in zip(part, looks, strict=True)]
                with database:
                    database.executemany("INSERT OR REPLACE INTO sights VALUES (?, ?)", rows)
                progress(first + len(part), len(wanted))

    def of(self, paths: Sequence[Path]) -> Iterator[list[int] | str | None]:
        """Yield what is known of each file."""
        have = self._stored_digests()
        for path in paths:
            yield json.loads(have[_key(path)])

    def _stored_digests(self) -> dict[str, str]:
        with closing(self._open_database()) as database:
            return dict(database.execute("SELECT file, said FROM sights"))

    def _open_database(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=60)
        database.execute("CREATE TABLE IF NOT EXISTS sights (file TEXT PRIMARY KEY, said TEXT NOT NULL)")
        return database


def _key(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{_FORMAT} {path}"
    return f"{_FORMAT} {status.st_size} {status.st_mtime_ns} {path.resolve()}"


Map = NDArray[np.float32]


@dataclass(frozen=True)
class MapItem:
    """A picture, and the file of its truth; None of a real one, which is forged nowhere."""

    sight: Sample
    truth: Path | None

    def pixels(self) -> Picture:
        """Return the part that is looked at, uint8 RGB [H, W, 3]."""
        return cut_to(self.sight.box, picture_of(self.sight.entry.path))

    def mask(self, height: int, width: int) -> Map:
        """Return how much of each of its pixels is forged, float32 [height, width] in 0..1."""
        if self.truth is None:
            return np.zeros((height, width), np.float32)
        with Image.open(self.truth, formats=FORMATS) as image:
            grey = np.asarray(image.convert("L"))
        return cut_to(self.sight.box, grey[..., None])[..., 0].astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class MapResult:
    """Maps of some of the test pictures, by one network and its threshold."""

    pictures: tuple[int, ...]
    """their numbers among the test pictures"""
    predicted: tuple[Map, ...]
    true: tuple[Map, ...]
    """of the predicted map's size"""
    threshold: float
    about: dict[str, JsonValue]


def with_truth(sights: Sequence[Sample], tally: Tally) -> list[MapItem]:
    """Return the pictures whose truth is known: reals, and forgeries with a map of their own size.

    Others are left out and counted.
    """
    items = []
    for sight in sights:
        entry = sight.entry
        truth = entry.masks[0] if entry.masks else None
        if not entry.label:
            items.append(MapItem(sight, None))
        elif truth is None:
            tally.add("forged pictures are left out, for where they are forged is not known", entry.path)
        elif (wrong := _wrong(truth, entry.path)) is not None:
            tally.add(wrong, truth)
        else:
            items.append(MapItem(sight, truth))
    return items


def _wrong(truth: Path, picture: Path) -> str | None:
    try:
        with Image.open(truth, formats=FORMATS) as mask, Image.open(picture, formats=FORMATS) as other:
            same = mask.size == other.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return "maps are no pictures, and their forgeries are left out"
    return None if same else "maps are of another size than their pictures, which are left out"
