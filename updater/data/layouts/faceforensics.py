"""FaceForensics++'s layout: originals, and each method's forgeries of pairs of them, at three rates.

Rössler et al. 2019, "FaceForensics++: Learning to Detect Manipulated Facial Images".

    original_sequences/youtube/RATE/videos/AAA.mp4 manipulated_sequences/METHOD/RATE/videos/AAA_BBB.mp4
    manipulated_sequences/METHOD/masks/videos/AAA_BBB.mp4           one set for all rates; FaceShifter has
    none {train,val,test}.json, here or in splits/                       pairs [A, B]: reals A and B, fakes
    A_B and B_A

Both fakes of a pair show something of both originals, so that a pair is a group. What no pair names has no
split and is not read: the recordings of actors, and what DeepFakeDetection made of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from memory.records import REAL
from updater.data.layouts.entries import Entry, LayoutError, Listing, Split
from updater.data.layouts.listed import (
    MISSING,
    Tally,
    group_items,
    json_in,
    kept_apart,
    refuse_another_release,
    subfolders,
)

Rate = Literal["raw", "c23", "c40"]


class _Pair(NamedTuple):
    first: str
    second: str
    split: Split


def load_faceforensics(folder: Path, rate: Rate = "c23") -> Listing:
    """List the originals, and then the forgeries of each method that is there at this rate.

    Raises LayoutError where the pairs, the originals or all methods of the rate are missing, and where of a
    folder's videos, or of the originals, fewer than half are there.
    """
    pairs = [pair for split in get_args(Split) for pair in _pairs(folder, split)]
    groups = group_items([pair[:2] for pair in pairs])
    tally = Tally()
    originals = folder / "original_sequences" / "youtube" / rate / "videos"
    entries: list[Entry] = []
    for pair, group in zip(pairs, groups, strict=True):
        for name in pair[:2]:
            entries += _entry(originals / f"{name}.mp4", REAL, group, pair.split, None, tally)
    refuse_another_release(originals, len(entries), 2 * len(pairs))
    methods = [
        place for place in subfolders(folder / "manipulated_sequences") if (place / rate / "videos").is_dir()
    ]
    if not methods:
        raise LayoutError(
            f"{folder} has no manipulated_sequences/METHOD/{rate}/videos: unpack one, or name another rate"
        )
    for method in methods:
        entries += _of_method(method, rate, pairs, groups, tally)
    return Listing(f"faceforensics-{rate}", kept_apart(entries, tally), tally.notes())


def _of_method(
    method: Path, rate: Rate, pairs: list[_Pair], groups: list[str], tally: Tally
) -> Iterator[Entry]:
    videos, masks = method / rate / "videos", method / "masks" / "videos"
    names = [
        (f"{a}_{b}.mp4", group, pair.split)
        for pair, group in zip(pairs, groups, strict=True)
        for a, b in ((pair.first, pair.second), (pair.second, pair.first))
    ]
    there = sum((videos / name).is_file() for name, _, _ in names)
    if not there:
        tally.add("folders hold no video that a pair names, and are left out", videos)
        return
    refuse_another_release(videos, there, len(names))
    for name, group, split in names:
        mask = masks / name
        yield from _entry(videos / name, method.name, group, split, mask if mask.is_file() else None, tally)


def _entry(
    path: Path, family: str, group: str, split: Split, mask: Path | None, tally: Tally
) -> Iterator[Entry]:
    if path.is_file():
        masks = (mask,) if mask is not None else ()
        yield Entry(path, int(family != REAL), family, group, split, masks=masks)
    else:
        tally.add(MISSING, path)


def _pairs(folder: Path, split: Split) -> Iterator[_Pair]:
    places = [place for place in (folder, folder / "splits") if (place / f"{split}.json").is_file()]
    if not places:
        raise LayoutError(f"{folder} has no {split}.json, nor has its splits: put the published pairs there")
    path = places[0] / f"{split}.json"
    listed = json_in(path)
    if not isinstance(listed, list):
        raise LayoutError(f"{path} is no list of pairs: fetch it again")
    for pair in listed:
        match pair:
            case [str(first), str(second)] if first.isalnum() and second.isalnum():
                yield _Pair(first, second, split)
            case _:
                raise LayoutError(f"{path} holds {str(pair)[:60]}, which is no pair of names: fetch it again")
