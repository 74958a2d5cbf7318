"""The files below a folder, as every layout finds them."""

from dataclasses import dataclass
from pathlib import Path

from updater.benchmark.data.tasks import LayoutError


@dataclass(frozen=True)
class MediaFile:
    """A file, the name that its item's id begins with (unique within a stream), and its class."""

    path: Path
    name: str
    family: str
    clip: str | None = None
    """the group of the clip that it is a frame of, unique within a stream; None where it stands alone"""


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones; none where there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def media_in(folder: Path, expected: str) -> list[Path]:
    """Return everything below a folder but what is hidden, sorted.

    Raises LayoutError, which says what was expected in the folder above it, where it is missing or empty.
    """
    paths = [
        path
        for path in (sorted(folder.rglob("*")) if folder.is_dir() else [])
        # Not `is_file`: a link that leads nowhere must be told of, not skipped.
        if not path.is_dir() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not paths:
        what = "holds no media" if folder.is_dir() else "is missing"
        raise LayoutError(f"{folder} {what}: {folder.parent} needs {expected}")
    return paths
