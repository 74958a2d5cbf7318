"""The layouts by name, and their labelled files for a memory.

To add a layout is a file beside this with what reads a folder to a listing, and a line.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ingest.records import CropPlan
from memory.records import REAL
from updater.data.layouts.cddb import list_cddb
from updater.data.layouts.deepfakebench import load_lists
from updater.data.layouts.dfdc import load_dfdc
from updater.data.layouts.entries import Entry, LayoutError, Listing
from updater.data.layouts.faceforensics import load_faceforensics
from updater.data.layouts.forgerynet import load_both
from updater.data.layouts.listed import Tally, reported_split

LAYOUTS: Mapping[str, Callable[[Path], Listing]] = {
    "cddb": list_cddb,
    "deepfakebench": load_lists,
    "dfdc": load_dfdc,
    "faceforensics": load_faceforensics,
    "forgerynet": load_both,
}
_OF_A_VIDEO = CropPlan().frames
"""frames of a video that is kept as pictures: as many as are looked at of one that is a file"""
_TAKEN = ("real", "fake", "ignore", "unknown", "unclustered", "all")
"""what means something else to the memory"""
_OTHER = re.compile(r"[^a-z0-9]+")


def read_layout(name: str, folder: Path) -> Listing:
    """List a folder of that layout. Raises LayoutError where it is none of it, or the name is none."""
    if name not in LAYOUTS:
        raise LayoutError(f"--layout {name} is none: choose of {', '.join(LAYOUTS)}")
    if not folder.is_dir():
        raise LayoutError(f"{folder} is no folder: name the one that holds the data")
    return LAYOUTS[name](folder)


def labelled_files(name: str, folder: Path) -> tuple[list[tuple[str, Path]], tuple[str, ...]]:
    """Return a layout's files to import, each as FAMILY/[GROUP/]PATH, and lines on omissions.

    What the set reports by stays outside, for figures to be measured on. All else is split anew by the
    memory, which keeps a group on one side: a video, an identity, or what the set's list says belongs
    together. Raises what `read_layout` raises, and LayoutError where there are no reals or no forgeries.
    """
    listing, tally = read_layout(name, folder), Tally()
    reported = reported_split(listing)
    files = []
    for entry in listing.entries:
        if entry.split == reported:
            tally.add(f"files of the set's {reported} are left out, to be measured on", entry.path)
        else:
            files += [(_place_entry(entry, path, folder), path) for path in pictures_of(entry)]
    if len({name.partition("/")[0] == REAL for name, _ in files}) < 2:
        raise LayoutError(f"{folder} has no reals, or no forgeries, to learn from: unpack both")
    return files, (*listing.notes, *tally.notes())


def family_of(entry: Entry) -> str:
    """Return the name of an entry's family as the memory has names: lower-case words joined by hyphens."""
    if not entry.label:
        return REAL
    words = _OTHER.sub("-", entry.family.lower()).strip("-")
    return words if words[:1].isalpha() and words not in _TAKEN else f"by-{words}"


def pictures_of(entry: Entry) -> Iterator[Path]:
    """Yield an entry's file; of a video that is kept as pictures, some frames evenly over it."""
    if not entry.pictures:
        yield entry.path
        return
    places = np.linspace(0, len(entry.pictures) - 1, min(_OF_A_VIDEO, len(entry.pictures)))
    yield from (entry.pictures[round(place)] for place in places)


def _place_entry(entry: Entry, path: Path, folder: Path) -> str:
    below = path.relative_to(folder).as_posix()
    if entry.group == below:  # it stands alone, and the memory finds what it is near to
        return f"{family_of(entry)}/{below.replace('/', '_')}"
    group = "".join(c if c.isprintable() and c != "/" else "_" for c in entry.group)
    return f"{family_of(entry)}/{group}/{below}"
