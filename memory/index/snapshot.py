"""The index's snapshot: a file that grows by what came since the last, read back as far as it is whole.

A record is its length, the SHA-256 of its bytes, and a safetensors value; some records and one that says
`complete` are what one save wrote. What a crash left behind the last of these is cut off by the next save.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray
from safetensors.numpy import load, save

from ingest.durable import file_aside

_LENGTH_BYTES, _DIGEST_BYTES = 8, 32
_COMPLETE = "complete"


class SnapshotError(Exception):
    """The snapshot is missing, damaged, or of other features: not an error but a reason to rebuild."""


@dataclass(frozen=True)
class Record:
    """Arrays by name, and facts about them."""

    tensors: Mapping[str, NDArray[Any]]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Written:
    """Which file a save left, and how long: only that one is added to."""

    inode: int
    length: int


def write_whole(path: Path, records: Iterable[Record], facts: Mapping[str, str]) -> Written:
    """Put a file in place, over what lies there, that holds these records, complete. Raises OSError."""
    with file_aside(path) as aside, aside.open("wb") as file:
        _write(file, records, facts)
        written = Written(os.fstat(file.fileno()).st_ino, file.tell())
    return written


def add(path: Path, written: Written, records: Iterable[Record], facts: Mapping[str, str]) -> Written | None:
    """Add records to the file that an earlier save left, complete; None where another lies there now.

    Raises OSError.
    """
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = os.fstat(file.fileno())
        if found.st_ino != written.inode or found.st_size < written.length:
            return None
        file.seek(written.length)
        file.truncate()
        _write(file, records, facts)
        file.flush()
        os.fsync(file.fileno())
        return Written(written.inode, file.tell())


def read(path: Path) -> Iterator[tuple[Record, Written]]:
    """Yield the records of each complete save, each with the file as far as it, up to the first damage.

    `is_end` is true of the last record of a save. Raises SnapshotError where not even the first is complete:
    its records were yielded by then, so that it need not be held twice.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise SnapshotError(f"no snapshot: {error.strerror}") from error
    with file:
        inode = os.fstat(file.fileno()).st_ino
        begun, waiting = False, []
        for record in _records(file):
            waiting.append((record, Written(inode, file.tell())))
            if is_end(record) or not begun:
                yield from waiting
                waiting, begun = [], begun or is_end(record)
        if not begun:
            raise SnapshotError("the snapshot is damaged")


def is_end(record: Record) -> bool:
    """Say whether a record is the last of a save."""
    return _COMPLETE in record.facts


def _write(file: BinaryIO, records: Iterable[Record], facts: Mapping[str, str]) -> None:
    for record in chain(records, [Record({}, {**facts, _COMPLETE: "yes"})]):
        value = save(dict(record.tensors), metadata=dict(record.facts))
        file.write(len(value).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(value).digest())
        file.write(value)


def _records(file: BinaryIO) -> Iterator[Record]:
    while len(head := file.read(_LENGTH_BYTES + _DIGEST_BYTES)) == _LENGTH_BYTES + _DIGEST_BYTES:
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        left = os.fstat(file.fileno()).st_size - file.tell()
        value = file.read(length) if length <= left else b""
        if len(value) < length or hashlib.sha256(value).digest() != head[_LENGTH_BYTES:]:
            return
        yield Record(load(value), _facts(value))


def _facts(value: bytes) -> dict[str, str]:
    length = int.from_bytes(value[:8], "little")
    facts: dict[str, str] = json.loads(value[8 : 8 + length]).get("__metadata__", {})
    return facts
