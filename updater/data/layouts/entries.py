"""Records of the layouts of forged pictures and videos: an entry a file, and a listing of them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from updater.distortions.distortion import Step

Split = Literal["train", "val", "test"]


class DataError(Exception):
    """Fatal: the data cannot be read as it lies. One line: the problem, its place and the remedy."""


class LayoutError(DataError):
    """The directories are not laid out as the reader expects, or one of them is empty."""


class SegmentsError(DataError):
    """A list speaks of frames that a video does not have."""


class Extent(NamedTuple):
    """The frames first, first + 1, … end - 1."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A picture or a video that is there."""

    path: Path
    """the file; of a video that is kept as pictures, their folder"""
    label: int
    """0 real, 1 forged"""
    family: str
    """"real", or what forged it"""
    group: str
    """what its split must not share with another: a source identity, a target or an original"""
    split: Split
    segments: tuple[Extent, ...] = ()
    """what is forged, in order, without overlap and within `annotated`; none of a real"""
    annotated: Extent | None = None
    """the frames of which it is known whether they are forged; None where only the whole is labelled"""
    masks: tuple[Path | None, ...] = ()
    """maps of where it is forged: of each of `pictures`, else of the file; empty where there are none"""
    frames: int | None = None
    """how many frames a video has; None where no list tells, and of a picture"""
    pictures: tuple[Path, ...] = ()
    """the frames of a video that is kept as pictures, in their order"""
    distortions: tuple[Step, ...] = ()
    """what it is to be seen under, in the order of application"""
    distorted: bool = False
    """whether the file has these already; else they are yet to be applied"""


@dataclass(frozen=True)
class Listing:
    """The entries of a layout. No group is in two splits."""

    name: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    """a line for each kind of thing that was left out or contradicts itself: how many, and the first"""


def with_frames(entry: Entry, frames: int) -> Entry:
    """Return a video with its number of frames. Raises SegmentsError where its list speaks of later ones."""
    if entry.annotated is not None and entry.annotated.end > frames:
        raise SegmentsError(
            f"{entry.path} has {frames} frames, and its list tells of frame {entry.annotated.end - 1}:"
            " leave it out, or take the file and the list of one release"
        )
    return replace(entry, frames=frames)
