"""The index's snapshot: a file of its facts and its vectors, written aside, synced, digested and renamed.

The file is the SHA-256 of what follows, a length, a safetensors value of that length, and FAISS's own bytes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray
from safetensors.numpy import load, save

from ingest.durable import file_aside
from memory.index.ivf_index import IvfIndex

_LENGTH_BYTES, _DIGEST_BYTES = 8, 32
_AT_ONCE = 2**20


class IndexSnapshotError(Exception):
    """The snapshot is missing, damaged, or of other features: not an error but a reason to rebuild."""


@dataclass(frozen=True)
class IndexSnapshot:
    """Arrays by name, facts about them, and the file that stands where the vectors begin."""

    tensors: Mapping[str, NDArray[Any]]
    facts: Mapping[str, str]
    file: BinaryIO


def write(
    path: Path, tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, str], vectors: IvfIndex
) -> None:
    """Put a snapshot in place of an older one. Raises OSError."""
    value = save(dict(tensors), metadata=dict(facts))
    with file_aside(path) as aside, aside.open("w+b") as file:
        file.write(bytes(_DIGEST_BYTES) + len(value).to_bytes(_LENGTH_BYTES, "little") + value)
        vectors.write(file)
        digest = _digest(file)
        file.seek(0)
        file.write(digest)


@contextmanager
def open_snapshot(path: Path) -> Iterator[IndexSnapshot]:
    """Yield the snapshot at path. Raises SnapshotError where there is none, or a byte of it has changed."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise IndexSnapshotError(f"no snapshot: {error.strerror}") from error
    with file:
        # Before FAISS sees it, which trusts the lengths that it reads.
        if file.read(_DIGEST_BYTES) != _digest(file):
            raise IndexSnapshotError("the snapshot is damaged")
        file.seek(_DIGEST_BYTES)
        value = file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little"))
        header = int.from_bytes(value[:8], "little")
        facts: dict[str, str] = json.loads(value[8 : 8 + header]).get("__metadata__", {})
        yield IndexSnapshot(load(value), facts, file)


def _digest(file: BinaryIO) -> bytes:
    file.seek(_DIGEST_BYTES)
    digest = hashlib.sha256()
    while part := file.read(_AT_ONCE):
        digest.update(part)
    return digest.digest()
