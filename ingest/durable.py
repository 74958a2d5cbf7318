"""Writes that survive a power cut: a name shows the whole new content or the old one.

Written aside in the same folder, synced, renamed, and the folder that holds the name synced too: POSIX
promises the order of none of these without the sync between them (Pillai et al. 2014, "All file
systems are not created equal", OSDI). What is made here is for this user's eyes only.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# How the name of everything unfinished ends. A crash may leave such a file or folder behind.
ASIDE = ".part"


def write_durably(path: Path, value: bytes) -> None:
    """Put a file's bytes in place of its old ones; its folder is made. Raises OSError."""
    with file_aside(path) as aside:
        aside.write_bytes(value)


@contextmanager
def file_aside(path: Path) -> Iterator[Path]:
    """Yield an empty file beside path to be filled; on leaving it is path, durably, in place of any old file.

    An error inside leaves path as it was, and nothing beside it. Raises OSError.
    """
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=ASIDE)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        rename_durably(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


@contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside path to be filled; on leaving it is path, durably.

    An error inside leaves path as it was, and nothing beside it. Raises OSError, also where a folder
    that is not empty lies at path: no file system exchanges two folders in one step everywhere.
    """
    make_folder(path.parent)
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=ASIDE))
    try:
        yield aside
        rename_durably(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def rename_durably(aside: Path, path: Path) -> None:
    """Sync a file, or a folder with all below it, then give it its name. Raises OSError.

    Both must lie in one file system; path's folder must be there, and a folder at path be empty.
    """
    sync_tree(aside)
    aside.replace(path)
    sync(path.parent)
    if aside.parent != path.parent:
        sync(aside.parent)


def sync_tree(path: Path) -> None:
    """Sync a file, or a folder with all below it; links are not followed. Raises OSError."""
    if not path.is_dir():
        sync(path)
        return
    for folder, _, files in os.walk(path):
        for name in files:
            if not (file := Path(folder, name)).is_symlink():
                sync(file)
        sync(Path(folder))


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's list of names, from the system's memory to disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those missing above it, each name synced in its parent. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync(path.parent)
