"""Rows of an array on disk, read by their numbers: crops and features of more items than memory holds.

They lie one after another in a file, which is read and not mapped: pages of a mapped file count as the
process's memory, and a mapped file that gets shorter kills the process without a word.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_HELD_BYTES = 2**28
"""What is computed and takes more is kept on disk."""
_OPEN_FILES = 64
READ_AT_ONCE = 2**24
"""bytes"""
_LONGEST_HEADER = 2**27
_DTYPES = {"U8": "u1", "F16": "<f2", "F32": "<f4"}
"""of safetensors, those that are read here"""


class StoredRowsError(Exception):
    """Stored rows were changed, cut short or removed while they were read, or cannot be written. Fatal."""


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
    """Return a file's identity: its number, size in bytes and time of change in ns."""
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


class StoredRows:
    """T rows of one shape and dtype, chosen from shards: `rows[numbers]` and `rows[a:b]` read those alone."""

    def __init__(self, shards: Sequence[Shard], places: NDArray[np.int64] | None = None) -> None:
        """At least one shard. places: int64 [T], counted over all shards; None: all rows as they lie.

        Raises ValueError where the shards' rows differ in shape or dtype.
        """
        self.shards = tuple(shards)
        first = self.shards[0]
        if any((shard.row, shard.dtype) != (first.row, first.dtype) for shard in self.shards):
            raise ValueError(f"rows of {sorted({shard.row for shard in self.shards})} do not go together")
        self._ends = np.cumsum([shard.count for shard in self.shards])
        self._places = np.arange(self._ends[-1]) if places is None else places
        self.dtype = first.dtype
        self.shape = (len(self._places), *first.row)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        return len(self) * self.shards[0].row_bytes

    def __getitem__(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> NDArray[Any]:
        """Return rows, [N, ...]. Raises StoredRowsError."""
        places = self._places[rows]
        out = np.empty((len(places), *self.shape[1:]), self.dtype)
        if not len(places) or not out.nbytes:
            return out
        which = np.searchsorted(self._ends, places, "right")
        # Neighbours that lie side by side are read at once.
        breaks = np.flatnonzero((np.diff(places) != 1) | (np.diff(which) != 0)) + 1
        for start, end in zip([0, *breaks], [*breaks, len(places)], strict=True):
            shard = self.shards[which[start]]
            first = int(places[start]) - int(self._ends[which[start]]) + shard.count
            shard.read(first, out[start:end])
        return out

    def take(self, rows: NDArray[np.int64] | slice) -> "StoredRows":
        """Return a choice of the rows; nothing is read."""
        return StoredRows(self.shards, self._places[rows])

    def onto(self, shards: Sequence[Shard]) -> "StoredRows":
        """Return the same choice of rows from other shards, each of which has as many as its own."""
        return StoredRows(shards, self._places)

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, that says which rows these are."""
        total = hashlib.sha256("".join(shard.digest for shard in self.shards).encode())
        total.update(self._places.tobytes())
        return total.hexdigest()


def chosen_rows(values: Any, rows: NDArray[np.int64] | slice) -> Any:
    """Return rows of an array, or a choice of stored ones, of which nothing is read."""
    return values.take(rows) if isinstance(values, StoredRows) else values[rows]


def joined_rows(parts: Sequence[Any]) -> Any:
    """Return arrays one after another: stored rows if any of them are and the others hold nothing.

    Raises ValueError where the rows differ in shape or dtype.
    """
    full = [part for part in parts if len(part)]
    if not any(isinstance(part, StoredRows) for part in full):
        return np.concatenate([part[:] for part in parts])
    parts = [part if isinstance(part, StoredRows) else store_rows(part) for part in full]
    numbers: dict[Shard, int] = {}
    for part in parts:
        for shard in part.shards:
            numbers.setdefault(shard, len(numbers))
    begins = np.cumsum([0, *(shard.count for shard in numbers)])
    places = []
    for part in parts:
        which = np.searchsorted(part._ends, part._places, "right")
        own = np.array([int(begins[numbers[shard]]) for shard in part.shards])
        before = part._ends - np.array([shard.count for shard in part.shards])
        places.append(part._places - before[which] + own[which])
    return StoredRows(list(numbers), np.concatenate(places))


def rows_of_items(
    starts: NDArray[np.int64], items: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of some of n items, int64 [N], and where each one's begin among them, int64 [m + 1].

    starts: [n + 1], rows starts[i]:starts[i + 1] are item i's. items: [m].
    """
    counts = np.diff(starts)[items]
    own = np.cumsum([0, *counts]).astype(np.int64)
    return np.arange(own[-1]) + np.repeat(starts[items] - own[:-1], counts), own


class Scratch:
    """A file without a name, which rows are added to; it goes when nobody reads from it any more.

    It lies where the environment's TMPDIR says.
    """

    def __init__(self) -> None:
        try:
            with tempfile.TemporaryFile() as file:
                self._handle = Handle(os.dup(file.fileno()))
        except OSError as error:
            raise _unwritable(error) from error
        self._size, self._count, self._digest = 0, 0, hashlib.sha256()

    def add(self, rows: NDArray[Any]) -> None:
        """Write rows, [N, ...], behind those that are there. Raises StoredRowsError."""
        flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        self._digest.update(flat)  # type: ignore[arg-type]  # numpy arrays are buffers
        view = memoryview(flat)  # type: ignore[arg-type]  # numpy arrays are buffers
        try:
            while view:
                written = os.pwrite(self._handle.descriptor, view[:READ_AT_ONCE], self._size)
                view, self._size = view[written:], self._size + written
        except OSError as error:
            raise _unwritable(error) from error
        self._count += len(rows)
        self._row, self._dtype = rows.shape[1:], rows.dtype

    def rows(self) -> StoredRows:
        """Return all rows, at least one; none may be added afterwards."""
        descriptor = self._handle.descriptor
        # By this name another process of this host can open it.
        path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        digest, mark = self._digest.hexdigest(), stamp(descriptor)
        return StoredRows([Shard(path, 0, self._count, self._row, self._dtype, digest, mark, self._handle)])


def store_rows(rows: NDArray[Any]) -> StoredRows:
    """Write an array of at least one row to a file without a name. Raises StoredRowsError."""
    scratch = Scratch()
    scratch.add(rows)
    return scratch.rows()


class Collected:
    """Arrays that are put one behind another: in memory, or on disk once they take too much."""

    def __init__(self) -> None:
        self._held: list[NDArray[Any]] = []
        self._held_bytes = 0
        self._scratch: Scratch | None = None

    def add(self, rows: NDArray[Any]) -> None:
        """Put rows, [N, ...], behind those that are there. Raises StoredRowsError."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._scratch is None and self._held_bytes > MAX_HELD_BYTES:
            self._scratch = Scratch()
        if self._scratch is not None:
            for array in self._held:
                self._scratch.add(array)
            self._held.clear()

    def rows(self) -> "NDArray[Any] | StoredRows":
        """Return all of them, at least one array."""
        return np.concatenate(self._held) if self._scratch is None else self._scratch.rows()


def collect_rows(parts: Iterable[NDArray[Any]]) -> NDArray[Any] | StoredRows:
    """Return arrays one after another, at least one, as `Collected` holds them. Raises StoredRowsError."""
    rows = Collected()
    for part in parts:
        rows.add(part)
    return rows.rows()


def _unwritable(error: OSError) -> StoredRowsError:
    folder = tempfile.gettempdir()
    return StoredRowsError(
        f"{folder} cannot hold the rows that do not fit into memory ({error.strerror}): name a"
        " folder with room by TMPDIR"
    )
