"""Which families a tree has, of what kind each is, and the numbers of their classes.

The classes of two, three and n are He et al. 2021, section 3.2. Our own stream's families stand in the
directories 1 to 8, and take the names and the kinds that are given here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memory.records import REAL
from updater.data.layouts.entries import Entry
from updater.data.layouts.forgerynet import APPROACHES, Kind, Medium

Kinds = Mapping[str, Kind]
"""families in the order of their directories, each with what becomes of the identity"""

KINDS: tuple[Kind, ...] = ("remained", "replaced")
OWN: dict[str, Kind] = {
    "blended": "replaced",
    "inpainted": "replaced",
    "upsampled": "replaced",
    "autoencoded": "replaced",
    "recompressed": "remained",
    "sharpened": "remained",
    "periodic": "remained",
    "smoothed": "remained",
}
"""our stream's families; the first stand for an identity that is replaced"""


def families_of(medium: Medium, *, synthetic: bool) -> Kinds:
    """Return the families that a tree of pictures, or of videos, may have."""
    if synthetic:
        return OWN
    return {one.name: one.kind for one in APPROACHES.values() if one.in_videos or medium == "image"}


def with_own_names(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries of our own media, which the reader named by the directories that they stand in."""
    names = {APPROACHES[number].name: name for number, name in enumerate(OWN, 1)}
    return tuple(replace(one, family=names.get(one.family, one.family)) for one in entries)


def classes_offered(kinds: Kinds) -> tuple[int, int, int]:
    """Return how many classes may be told apart: two, three, and each family by itself."""
    return 2, 3, 1 + len(kinds)


def class_of(family: str, kinds: Kinds, classes: int) -> int:
    """Return the number of a family's class of so many; 0 is real. Raises KeyError for an unknown family."""
    if family == REAL:
        return 0
    kind = kinds[family]
    if classes == 2:
        return 1
    if classes == 3:
        return 1 + KINDS.index(kind)
    return 1 + list(kinds).index(family)


def class_names(kinds: Kinds, classes: int) -> tuple[str, ...]:
    """Return the classes' names by their numbers."""
    if classes == 2:
        return REAL, "forged"
    return (REAL, *KINDS) if classes == 3 else (REAL, *kinds)


def in_group(family: str, kinds: Kinds, group: str) -> bool:
    """Say whether a forged family is of a group: a kind, or a family by itself."""
    return family != REAL and group in (family, kinds[family])
