"""CDDB's layout: TASK/{train,val}/[CLASS/]{0_real,1_fake}/FILE; and which files are frames of one clip.

Li et al. 2023, "A Continual Deepfake Detection Benchmark: Dataset, Methods, and Essentials", section 3.2.
`val` is the test, as in the paper. Frames of one clip are one group, never on both sides of a split:

- A folder below 0_real or 1_fake is one clip, in every task: 1_fake/CLIP/FRAME.png.
- In the tasks that come from videos, what a file's name says before its last number: CLIP_FRAME.png. In other
  tasks such names count images, or begin with a class, as ImageNet's do: there each file stands alone.
- FaceForensics++ names a forged clip TARGET_SOURCE. It shows what the real clip TARGET shows: they are one.

A clip is one of its task and object class, real and fake alike: a fake is often made from the real clip of
the same name. A name that is one word, whether with a number or not, says no clip.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from memory.records import REAL
from updater.data.layouts.entries import Entry, LayoutError, Listing, Split
from updater.data.layouts.listed import media_in, subfolders

FACEFORENSICS = ("deepfake", "faceforensics", "faceforensics++")
WILD = ("wild", "wilddeepfake")
"""names in lower case of the tasks whose files are frames of videos, that of the published data first"""
_KINDS = {"0_real": REAL, "1_fake": "fake"}
_PARTS: dict[str, Split] = {"train": "train", "val": "test"}
_FRAME = re.compile(r"(.+?)(?:[ ._-]+(?:frame[ ._-]*)?|frame[ ._-]*)\d+", re.IGNORECASE)
_TARGET_AND_SOURCE = re.compile(r"(\d+)[_-]\d+")


def clip_of(file: PurePosixPath, *, of_videos: bool, face_swaps: bool) -> str | None:
    """Return the clip that a file is a frame of, by its path below 0_real or 1_fake; None where it is none.

    of_videos: whether the task's images are frames of videos. face_swaps: whether forged clips are named by
    target and source.
    """
    clip = None
    if len(file.parts) > 1:
        clip = file.parent.as_posix()
    elif of_videos and (named := _FRAME.fullmatch(file.stem)):
        clip = named[1]
    if clip is not None and face_swaps and (both := _TARGET_AND_SOURCE.fullmatch(clip)):
        clip = both[1]
    return clip


def list_cddb(folder: Path) -> Listing:
    """List the files of every task; a task is a family. Raises LayoutError."""
    tasks = tasks_in(folder)
    return Listing(
        "cddb", tuple(e for task in tasks for part in _PARTS for e in files_of(folder, task, part)), ()
    )


def tasks_in(folder: Path) -> list[str]:
    """Return the names of a folder's tasks. Raises LayoutError where there are none."""
    if not folder.is_dir():
        raise LayoutError(f"{folder} is no folder: name one that holds TASK/{{train,val}}/{{0_real,1_fake}}")
    names = [path.name for path in subfolders(folder) if any((path / part).is_dir() for part in _PARTS)]
    if not names:
        raise LayoutError(f"{folder} holds no TASK/{{train,val}}/[CLASS/]{{0_real,1_fake}}: lay it out so")
    return names


def files_of(folder: Path, task: str, part: str) -> Iterator[Entry]:
    """Yield the files of a task's train or val. A file that is no frame of a clip is a group of its own.

    Raises LayoutError.
    """
    top = folder / task / part
    if not top.is_dir():
        raise LayoutError(f"{top} is missing: each task needs train and val")
    plain = any((top / name).is_dir() for name in _KINDS)
    for place in [top] if plain else subfolders(top) or [top]:
        for name, kind in _KINDS.items():
            needs = "0_real and 1_fake, or CLASS/0_real and CLASS/1_fake, with media"
            for path in media_in(place / name, needs):
                clip = clip_of(
                    PurePosixPath(path.relative_to(place / name)),
                    of_videos=task in (*FACEFORENSICS, *WILD),
                    face_swaps=task in FACEFORENSICS,
                )
                alone = path.relative_to(folder).as_posix()
                group = alone if clip is None else "/".join([task, *place.relative_to(top).parts, clip])
                yield Entry(path, int(kind != REAL), task if kind != REAL else REAL, group, _PARTS[part])
