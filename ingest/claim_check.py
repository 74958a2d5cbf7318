"""Fetches media that came as a reference: a file: URL below one configured folder, nothing else."""

import os
import stat
from pathlib import Path
from typing import Literal
from urllib.parse import unquote_to_bytes, urlsplit

from ingest.records import MediaError

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that has no writer would wait for ever.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC

ClaimCheckReason = Literal["dataref_refused", "dataref_missing", "too_large"]


class ClaimCheckError(MediaError):
    """A dataref that points outside the root, at nothing, at no plain file or at too much."""

    def __init__(self, reason: ClaimCheckReason, message: str) -> None:
        super().__init__(reason, message)


def fetch(dataref: str, root: Path | None, max_bytes: int) -> bytes:
    """Read the file that a dataref names.

    dataref is a file: URL (file:///absolute/path, percent-encoding allowed); root is the folder
    that the file must lie in after every symbolic link is resolved; None refuses everything. It holds
    too against one who exchanges files, folders and links below the root meanwhile: the resolved path
    is walked from the root's descriptor, one part after the other, and no link is followed any more.

    Raises ClaimCheckError: dataref_refused, dataref_missing, or too_large (more than max_bytes;
    the size is looked at before a byte is read, and again while a growing file is read).
    """
    top, parts = _path_below(dataref, root)
    try:
        descriptor = _open_below(top, parts)
    except FileNotFoundError as error:
        raise ClaimCheckError("dataref_missing", "the dataref names no file") from error
    except OSError as error:
        raise ClaimCheckError("dataref_refused", f"the dataref cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ClaimCheckError("dataref_refused", "the dataref names something that is no plain file")
        if status.st_size > max_bytes:
            raise ClaimCheckError("too_large", f"{status.st_size} bytes; the limit is {max_bytes}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            media = file.read(max_bytes + 1)
    except OSError as error:
        raise ClaimCheckError("dataref_refused", f"the dataref cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(media) > max_bytes:
        raise ClaimCheckError("too_large", f"grew beyond the limit of {max_bytes} bytes while it was read")
    return media


def _path_below(dataref: str, root: Path | None) -> tuple[Path, tuple[str, ...]]:
    """The resolved root and the resolved path's parts below it: what the folders say at this moment."""
    if root is None:
        raise ClaimCheckError("dataref_refused", "claim checks are off: no root folder is set")
    try:
        url = urlsplit(dataref)
        path = Path(os.fsdecode(unquote_to_bytes(url.path)))
    except ValueError as error:
        raise ClaimCheckError("dataref_refused", "the dataref is no valid URL") from error
    if url.scheme != "file" or url.netloc not in ("", "localhost") or url.query or url.fragment:
        raise ClaimCheckError("dataref_refused", "only file: URLs of this machine are fetched")
    if not path.is_absolute():
        raise ClaimCheckError("dataref_refused", "the dataref's path is not absolute")
    try:
        resolved, top = path.resolve(), root.resolve()
    # ValueError: a path with a NUL, or with a surrogate that no file system has.
    except (OSError, RuntimeError, ValueError) as error:
        raise ClaimCheckError("dataref_refused", "the dataref's path cannot be resolved") from error
    if not resolved.is_relative_to(top):
        raise ClaimCheckError("dataref_refused", "the dataref lies outside the configured root")
    return top, resolved.relative_to(top).parts


def _open_below(top: Path, parts: tuple[str, ...]) -> int:
    """Open a file by its parts below a folder, none of them a link; give its descriptor. Raises OSError."""
    folder = os.open(top, _FOLDER)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        return os.open(parts[-1] if parts else ".", _FILE, dir_fd=folder)
    finally:
        os.close(folder)
