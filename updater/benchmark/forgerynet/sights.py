"""Which files can be decoded, where the largest face of each picture is, and where it is forged.

A file that gives none is left out and counted. What is known of a file is kept by its path, size and time
of its last change.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from ingest.durable import make_folder
from ingest.sandbox.crops import Box
from ingest.sandbox.extract import find_faces
from ingest.settings import IngestSettings
from updater.benchmark.forgerynet.choices import Input
from updater.data.layouts.entries import Entry, SegmentsError, with_frames
from updater.data.layouts.forgerynet import VIDEO_SUFFIXES
from updater.data.layouts.listed import Tally
from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.distortions.distortion import DistortionError
from updater.distortions.files import read_still
from updater.filters import Picture
from updater.training.crop_rows import in_turn
from updater.training.processes import is_first, wait

MARGIN = 1.3
"""a face's box is enlarged by this about its middle"""
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")
"""of pictures and of maps, by Pillow's names; ForgeryNet's own are the first two"""
_FORMAT = "2"
_STRIDE = 30
"""from one frame of a video to the next, where a network sees pictures: the paper's table 12"""
_AT_A_TIME = 256

MAX_PIXELS = IngestSettings().max_pixels


@dataclass(frozen=True)
class Sample:
    """A file that can be decoded, and the part of a picture that is looked at; None: all of it."""

    entry: Entry
    box: Box | None = None
    frames: int = 1
    """of a video"""
    frame: int = 0
    """the number of the frame that stands for a video where a network sees pictures"""

    def pixels(self) -> Picture:
        """Return the part that is looked at, uint8 RGB [H, W, 3]. Raises what decoding it raises."""
        return cut_to(self.box, next(islice(_pictures(self.entry.path), self.frame, None)))


def look_at(
    entries: Sequence[Entry],
    kind: Input | Literal["video"],
    cache: Path,
    tally: Tally,
    progress: Callable[[int, int], None],
) -> list[Sample]:
    """Return the entries that can be decoded, of videos with their frames. native looks at all of a picture.

    A video that is looked at as pictures gives every 30th frame. Others are counted, and videos of which the
    list tells of frames that they do not have. Raises OSError where the cache cannot be written.
    """
    samples = []
    for entry, facts in zip(
        entries, _facts(entries, kind, cache / f"sights-{kind}.sqlite", progress), strict=True
    ):
        if isinstance(facts, str):
            tally.add("files cannot be decoded and are left out", f"{entry.path}: {facts}")
        elif kind != "video":
            # Of every frame that is looked at four numbers; without a width all of it is.
            for number, box in enumerate(zip(*(facts[at::4] for at in range(4)), strict=True)):
                samples.append(Sample(entry, box if box[2] else None, frame=number * _STRIDE))
        else:
            try:
                samples.append(Sample(with_frames(entry, facts[0]), frames=facts[0]))
            except SegmentsError as error:
                tally.add("videos are shorter than their lists say, and are left out", error)
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
    """Scale uint8 [H, W, 3] or [H, W], bilinearly; where it gets smaller over all that falls together."""
    if picture.shape[:2] == (height, width):
        return picture
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))


def _facts(
    entries: Sequence[Entry], kind: str, path: Path, progress: Callable[[int, int], None]
) -> list[list[int] | str]:
    """Look at files that the database does not know as they are, and return what it knows of each."""
    make_folder(path.parent)
    keys = [_key(entry.path) for entry in entries]
    known = "SELECT file, said FROM sights"
    with (
        closing(sqlite3.connect(path, timeout=60)) as database,
        ThreadPoolExecutor(os.cpu_count() or 1) as pool,
    ):
        database.execute("CREATE TABLE IF NOT EXISTS sights (file TEXT PRIMARY KEY, said TEXT NOT NULL)")
        if is_first():
            have = dict(database.execute(known))
            wanted = [(entry, key) for entry, key in zip(entries, keys, strict=True) if key not in have]
            looks = in_turn(pool, lambda of: (of[1], json.dumps(_look(of[0], kind))), wanted, _AT_A_TIME)
            for done, row in enumerate(looks, 1):
                with nullcontext() if done % _AT_A_TIME and done < len(wanted) else database:
                    database.execute("INSERT OR REPLACE INTO sights VALUES (?, ?)", row)
                progress(done, len(wanted))
        wait()
        have = dict(database.execute(known))
    return [json.loads(have[key]) for key in keys]


def _look(entry: Entry, kind: str) -> list[int] | str:
    """Return a video's number of frames, the boxes to look at, zeros for all of a picture, or the problem."""
    try:
        if kind == "video" and not entry.pictures:
            return [sum(1 for _ in Clip(entry.path, MAX_PIXELS).frames())]
        if kind == "video":
            sizes = {picture_of(path).shape for path in entry.pictures}
            return [len(entry.pictures)] if len(sizes) == 1 else f"its pictures have {len(sizes)} sizes"
        boxes: list[int] = []
        for picture in islice(_pictures(entry.path), 0, None, _STRIDE):
            faces = find_faces(picture, 1) if kind == "face" else ()
            square = square_about(faces[0], picture.shape[1], picture.shape[0]) if len(faces) else 4 * (0,)
            boxes += map(int, square)
        return boxes
    except (ClipError, DistortionError) as error:
        return str(error).removeprefix(f"{entry.path}").strip(": ")
    except OSError as error:
        return str(error.strerror)


def _key(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{_FORMAT} {path}"
    return f"{_FORMAT} {status.st_size} {status.st_mtime_ns} {path.resolve()}"


def _pictures(path: Path) -> Iterator[Picture]:
    """Yield a picture, or the frames of a video."""
    video = path.suffix.lower() in VIDEO_SUFFIXES
    yield from map(to_rgb, Clip(path, MAX_PIXELS).frames()) if video else (picture_of(path),)


Map = NDArray[np.float32]


@dataclass(frozen=True)
class MapItem:
    """A picture, and the file of its truth; None of a real one, which is forged nowhere."""

    sight: Sample
    truth: Path | None

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
