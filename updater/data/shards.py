"""Equal rows one after another in a file on disk, which is read and not mapped.

Pages of a mapped file count as the process's memory, and a mapped file that gets shorter kills the process
without a word.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OPEN_FILES = 64
READ_AT_ONCE = 2**24
"""bytes"""
_LONGEST_HEADER = 2**27
_DTYPES = {"U8": "u1", "F16": "<f2", "F32": "<f4"}
"""of safetensors, those that are read here"""


class StoredRowsError(Exception):
    """What is stored was changed, cut short or removed while it was read, or cannot be written. Fatal."""


class Handle:
    """An open file, which is closed when nobody needs it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True)
class Shard:
    """Equal rows one after another in a file."""

    path: Path
    offset: int
    """bytes before the first row"""
    count: int
    row: tuple[int, ...]
    """shape of a row"""
    dtype: np.dtype[Any]
    digest: str
    """which says what the rows hold, such as the SHA-256 of their bytes"""
    stamp: tuple[int, int, int]
    """the file's number, size in bytes and time of change in ns, as it was when its bytes were known"""
    held: Handle | None = field(default=None, compare=False, repr=False)
    """keeps a file that has no name"""

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return self.dtype.itemsize * int(np.prod(self.row))

    def read(self, first: int, out: NDArray[Any]) -> None:
        """Fill out with the rows from `first` on. Raises StoredRowsError."""
        view = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # numpy arrays are buffers
        at, done = self.offset + first * self.row_bytes, 0
        handle = self.held or _open_shard(self)
        try:
            while done < len(view):
                count = os.preadv(handle.descriptor, [view[done : done + READ_AT_ONCE]], at + done)
                if not count:
                    raise StoredRowsError(_change_message(self.path, "cut short"))
                done += count
        except OSError as error:
            raise StoredRowsError(_change_message(self.path, f"lost ({error.strerror})")) from error

    def __getstate__(self) -> dict[str, Any]:
        """For another process of this host, which opens the file for itself."""
        return vars(self) | {"held": None}


@lru_cache(_OPEN_FILES)
def _open_shard(shard: Shard) -> Handle:
    try:
        handle = Handle(os.open(shard.path, os.O_RDONLY))
    except OSError as error:
        raise StoredRowsError(_change_message(shard.path, f"lost ({error.strerror})")) from error
    if stamp(handle.descriptor) != shard.stamp:
        raise StoredRowsError(_change_message(shard.path, "changed"))
    return handle


def stamp(descriptor: int) -> tuple[int, int, int]:
    """Return by what a file is known again: its number, size in bytes and time of change in ns."""
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _change_message(path: Path, how: str) -> str:
    return f"{path} was {how} while it was in use: run the same again, which goes on and makes it anew"


def read_shard(path: Path, name: str) -> tuple[Shard, dict[str, str]] | None:
    """Return one array of a safetensors file as a shard, and the file's metadata; its bytes are hashed.

    None where there is no whole file of safetensors with such an array. Raises OSError if it cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        try:
            # The layout is the format's own: https://github.com/huggingface/safetensors#format
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length <= _LONGEST_HEADER else b"")
            array = header[name]
            begin, end = array["data_offsets"]
            dtype, (count, *row) = np.dtype(_DTYPES[array["dtype"]]), array["shape"]
        except (ValueError, KeyError, TypeError):
            return None
        offset, digest, left = 8 + length + begin, hashlib.sha256(), end - begin
        file.seek(offset)
        while left and (part := file.read(min(left, READ_AT_ONCE))):
            digest.update(part)
            left -= len(part)
        mark = stamp(file.fileno())
    shard = Shard(path.resolve(), offset, count, tuple(row), dtype, digest.hexdigest(), mark)
    if left or count * shard.row_bytes != end - begin:
        return None
    return shard, header.get("__metadata__", {})
