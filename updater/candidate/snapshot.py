"""The training snapshot: the exemplars of a release, their classes and labels.

A file of the artifact, bound by its manifest: JSON lines under gzip, one object an exemplar, the id first.
A row is found by its bytes, and no other is parsed.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

from pydantic import ValidationError
from pydantic_core import to_json

from memory.records import Split
from updater.data.training_data import LabelledCrops, Splits
from updater.evaluation_parts import MadeOf, SnapshotRow

MAX_BYTES = 2**30
"""Of the unpacked lines, millions of them: a few MB of gzip may hold more than memory does."""


class SnapshotError(ValueError):
    """The bytes are no training snapshot. Fatal for the request."""


class Snapshot:
    """A snapshot that was read back."""

    def __init__(self, data: bytes) -> None:
        """Unpack the file's bytes. Raises SnapshotError."""
        unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            lines = unpacking.decompress(data, MAX_BYTES)
        except zlib.error as error:
            raise SnapshotError(f"the training snapshot cannot be unpacked: {error}") from error
        if not unpacking.eof:
            raise SnapshotError(f"the training snapshot was cut, or holds more than {MAX_BYTES} bytes")
        self._lines = b"\n" + lines

    def __len__(self) -> int:
        return self._lines.count(b"\n") - 1

    def __iter__(self) -> Iterator[SnapshotRow]:
        """Yield every row in order. Raises SnapshotError."""
        return map(_row, self._lines.split(b"\n")[1:-1])

    def find(self, exemplar: str) -> SnapshotRow | None:
        """Return an exemplar's row; None where the release was not made of it. Raises SnapshotError."""
        start = self._lines.find(b'\n{"exemplar":' + to_json(exemplar) + b",")
        return None if start < 0 else _row(self._lines[start + 1 : self._lines.find(b"\n", start + 1)])


def _row(line: bytes) -> SnapshotRow:
    try:
        return SnapshotRow.model_validate_json(line)
    except ValidationError as error:
        raise SnapshotError(f"a line of the training snapshot is none: {error.errors()[0]['msg']}") from error


def snapshot_rows(splits: Splits) -> list[SnapshotRow] | None:
    """Return a row for each item, split by split; None of items that no memory holds: these bear no label."""
    parts: dict[Split, LabelledCrops] = {split: getattr(splits, split) for split in get_args(Split)}
    rows = []
    for split, items in parts.items():
        if items.media is None or items.labels is None:
            return None
        columns = (items.ids, items.media, items.families, items.groups, items.sources, items.labels)
        rows += [
            SnapshotRow(
                exemplar=exemplar,
                media_digest=str(media),
                family=family,
                split=split,
                group=group,
                source=source,
                label=int(label),
                declared=int(label) in splits.by_declaration,
            )
            for exemplar, media, family, group, source, label in zip(*columns, strict=True)
        ]
    return rows


def pack_rows(rows: Iterable[SnapshotRow]) -> bytes:
    """Return a snapshot's file: of the same rows always the same bytes."""
    return gzip.compress(b"".join(row.model_dump_json().encode() + b"\n" for row in rows), mtime=0)


def made_of(rows: Iterable[SnapshotRow]) -> MadeOf:
    """Return how many items there are of each label and of each source, and of declared ones, by split."""
    labels: dict[int, Counter[str]] = {}
    sources: dict[str, Counter[str]] = {}
    declared = Counter[str]()
    for row in rows:
        labels.setdefault(row.label, Counter())[row.split] += 1
        sources.setdefault(row.source, Counter())[row.split] += 1
        declared.update([row.split] * row.declared)
    return MadeOf(labels=labels, sources=sources, declared=declared)
