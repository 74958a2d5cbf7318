"""DeepfakeBench's lists: one JSON file a data set, of videos that are kept as pictures of their frames.

Yan et al. 2023, "DeepfakeBench: A Comprehensive Benchmark of Deepfake Detection".

    {SET: {LABEL: {train|val|test: [{raw|c23|c40:}] {VIDEO: {label, frames: […], masks: […]}}}}}

A LABEL that ends in "real" is of reals, every other is of forgeries. Paths come from another machine: they
may have backslashes, and the folders that they begin with are not here. Frames are in no order; the number
in a name gives it. Reals of several sets stand in all splits, and are kept in one.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, get_args

from memory.records import REAL
from updater.data.layouts.entries import Entry, LayoutError, Listing, Split
from updater.data.layouts.faceforensics import Rate
from updater.data.layouts.listed import (
    Tally,
    below,
    group_items,
    is_there,
    json_in,
    kept_apart,
    refuse_another_release,
    together,
)

_REAL = re.compile(r".*(?:\b|_)real", re.IGNORECASE)
_ACTORS_SET = "deeperforensics"
_ACTORS = "source_videos"

# By the name of a video, what it shows that others of its set show too: in FaceForensics++ two originals, in
# Celeb-DF the original of its target, in DeeperForensics a target and an actor.
_SHOWS = (
    (re.compile(r"(\d{3})_(\d{3})"), ("{0}", "{1}")),
    (re.compile(r"(id\d+)_id\d+_(\d+)"), ("{0}_{1}",)),
    (re.compile(r"(\d{3})_([MW]\d{3})"), ("{0}", "{1}")),
)


class _Video(NamedTuple):
    set_name: str
    family: str
    split: Split
    name: str
    frames: tuple[str, ...]
    masks: tuple[str, ...]


def load_lists(folder: Path) -> Listing:
    """List the videos of every JSON file of a folder, or of dataset_json in it or in its preprocessing.

    Raises what `load_deepfakebench` raises, and LayoutError where there is no such file.
    """
    places = (folder, folder / "dataset_json", folder / "preprocessing" / "dataset_json")
    lists = [path for place in places for path in sorted(place.glob("*.json"))]
    if not lists:
        raise LayoutError(
            f"{folder} has no SET.json, nor has its dataset_json: put DeepfakeBench's lists there"
        )
    return together("deepfakebench", [load_deepfakebench(path, folder) for path in lists])


def load_deepfakebench(path: Path, folder: Path, rate: Rate = "c23") -> Listing:
    """List the videos of a JSON file whose frames are below a folder, of sets with rates those of one.

    Raises LayoutError where the file is none of DeepfakeBench's or lacks the rate, where no ending of its
    paths is below the folder, and where fewer than half of its videos are there.
    """
    tally, root = Tally(), _Root(folder)
    videos = list(_videos(path, rate, tally))
    groups = group_items([_shown_keys(video) for video in videos]) if videos else []
    entries = []
    for video, group in zip(videos, groups, strict=True):
        if (entry := _entry(video, group, root, tally)) is not None:
            entries.append(entry)
    if videos and not entries:
        named = next(frame for video in videos for frame in video.frames)
        raise LayoutError(
            f"{path} names {named!r}, of which no ending is below {folder}: name the data's folder"
        )
    refuse_another_release(path, len(entries), len(videos))
    if not entries:
        raise LayoutError(
            f"{path} names no video to read: it needs SET, LABEL, train, val or test, and videos"
        )
    return Listing(path.stem, kept_apart(entries, tally), tally.notes())


def _entry(video: _Video, group: str, root: "_Root", tally: Tally) -> Entry | None:
    """Return a video with those of its frames that are there, in their order; None where there are none."""
    name = f"{video.set_name}/{video.family}/{video.name}"
    pictures = []
    for frame in sorted(video.frames, key=_number):
        if (picture := root.find(frame)) is not None:
            pictures.append(picture)
        else:
            tally.add("frames are listed and missing", frame)
    if not pictures:
        tally.add("videos have no frame that is there, and are left out", name)
        return None
    masks: dict[str, Path] = {}
    if video.family != REAL:
        paths = (root.find(mask) for mask in video.masks)
        masks = {mask.stem: mask for mask in paths if mask is not None}
    return Entry(
        pictures[0].parent,
        int(video.family != REAL),
        video.family,
        group,
        video.split,
        masks=tuple(masks.get(picture.stem) for picture in pictures) if masks else (),
        frames=len(pictures),
        pictures=tuple(pictures),
    )


class _Root:
    """The folder that the paths of a list are below here, once how much they begin with is known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dropped: int | None = None

    def find(self, listed: str) -> Path | None:
        """Return the file whose path ends as the listed one does; None where there is none."""
        parts = _parts(listed)
        # The longest ending that is there; all paths of a list begin alike.
        tried = range(len(parts)) if self._dropped is None else (self._dropped,)
        for dropped in tried:
            path = below(self._folder, "/".join(parts[dropped:]))
            if path is not None and is_there(path):
                self._dropped = dropped
                return path
        return None


def _number(frame: str) -> tuple[int, str, str]:
    """Return the sort key of frames: the last number in a name, of whatever length."""
    digits = re.findall(r"[0-9]+", PurePosixPath(*_parts(frame)).stem)
    number = digits[-1].lstrip("0") if digits else ""
    return len(number), number, frame


def _shown_keys(video: _Video) -> tuple[str, ...]:
    for pattern, keys in _SHOWS:
        if (parts := pattern.fullmatch(video.name)) is not None:
            return tuple(f"{video.set_name}/{key.format(*parts.groups())}" for key in keys)
    return (f"{video.set_name}/{video.name}",)


def _videos(path: Path, rate: Rate, tally: Tally) -> Iterator[_Video]:
    """Yield every video that the file names, as it names it."""
    for set_name, labels in _mapping(json_in(path), path).items():
        for label, splits in _mapping(labels, path).items():
            for name, rates in _mapping(splits, path).items():
                where = f"{set_name}/{label}/{name}"
                split = next((split for split in get_args(Split) if split == name), None)
                if split is None:
                    tally.add("splits are none of train, val and test, and are left out", where)
                elif not isinstance(rates, dict) or isinstance(rates.get("frames"), list):
                    tally.add("splits are one bare entry instead of videos, and are left out", where)
                else:
                    for video, about in _at_rate(rates, rate, f"{path}, {where}").items():
                        yield from _video(set_name, label, split, video, about, tally)


def _at_rate(by_rate: dict[str, Any], rate: Rate, where: str) -> dict[str, Any]:
    """Return the videos of a split; where it has several rates, those of one."""
    rates = sorted(by_rate.keys() & set(get_args(Rate)))
    if not rates or len(rates) < len(by_rate):
        return by_rate
    if rate not in rates or not isinstance(by_rate[rate], dict):
        raise LayoutError(f"{where} has {', '.join(rates)} and no videos at {rate}: name another rate")
    of_rate: dict[str, Any] = by_rate[rate]
    return of_rate


def _video(set_name: str, label: str, split: Split, name: str, about: Any, tally: Tally) -> Iterator[_Video]:
    """Yield a video, if it is to be used."""
    where = f"{set_name}/{label}/{split}/{name}"
    fields = about if isinstance(about, dict) else {}
    frames, masks = _strings(fields.get("frames")), _strings(fields.get("masks") or [])
    if not frames or masks is None:
        tally.add("videos have no list of frames, and are left out", where)
        return
    real = _REAL.fullmatch(label) is not None
    if (_REAL.fullmatch(str(fields.get("label", label))) is not None) != real:
        tally.add("videos are real by one of their two labels alone, and are left out", where)
    elif real and (_ACTORS_SET in set_name.lower() or any(_ACTORS in _parts(frame) for frame in frames)):
        tally.add("recordings of DeeperForensics' actors, which are no reals, are left out", where)
    else:
        yield _Video(set_name, REAL if real else label, split, name, frames, masks)


def _strings(value: Any) -> tuple[str, ...] | None:
    """Return a list of strings; None where it is none."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        return None
    return tuple(value)


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LayoutError(f"{path} is none of DeepfakeBench's lists: it needs SET, LABEL, split and videos")
    return value


def _parts(listed: str) -> tuple[str, ...]:
    return PurePosixPath(listed.replace("\\", "/").lstrip("/")).parts
