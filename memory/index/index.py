"""Search by likeness with FAISS, over the rows' features and hashes. A cache; the rows are the truth."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import structlog
from numpy.typing import NDArray
from safetensors.numpy import load, save
from sqlalchemy import Connection

from ingest.durable import file_aside
from memory.features import Floats, Scaling
from memory.index.ivf_index import SAMPLED, IvfIndex
from memory.index.picture_index import PictureIndex
from memory.rows import Features, changed_features, live_ids, newest_write, select_features, stream_features
from memory.store import Store, current_revision

_FORMAT = "5"
_LENGTH_BYTES, _DIGEST_BYTES = 8, 32
_AT_ONCE = 2**20
_SEED = 0
_SCALED_ON = 20_000
"""Rows that are enough to fit the scale, however many there are."""
_SAVED_AFTER = 1 / 50
"""Share of the exemplars that come or go before another snapshot is written: a start reads at most so many
rows, and an exemplar costs 50 times its 700 bytes of writing."""
_IN_PLACE = 2_000
"""Up to so many rows an index is made anew by the transaction that finds it outgrown; beyond, aside."""

Beat = Callable[[], None]
log = structlog.get_logger()


@dataclass(frozen=True)
class Match:
    """An exemplar like the one asked for. distance is the root mean square over robustly scaled features."""

    id: str
    distance: float


class Index:
    """Every row with features of one version that was not dropped, in robustly scaled features.

    For one thread at a time.
    """

    def __init__(self, feature_version: str, width: int) -> None:
        """Make an empty index for that version's features (F = width); `catch_up` fills it."""
        self.feature_version, self.width = feature_version, width
        self.revision = -1
        self._mark = ""
        self._names: list[str] = []
        self._places: dict[str, int] | None = None
        self._scaling: Scaling | None = None
        self._vectors: IvfIndex | None = None
        self._pictures = PictureIndex()
        self._made_for = 0
        self._unsaved = 0

    @classmethod
    def open(cls, path: Path, store: Store, version: str, width: int, beat: Beat = lambda: None) -> Self:
        """Return the index of the snapshot at path, brought up to the rows; built from them without one.

        beat is called now and then meanwhile. Raises StoreUnavailableError.
        """
        index = cls(version, width)
        try:
            index._load(path)
        except IndexSnapshotError as reason:
            log.info("index is rebuilt from the rows", reason=str(reason))
            index = cls(version, width)
        with store.read() as connection:
            if index._names and not index._agrees(connection):
                log.warning("index is of other rows, as after a restore; it is rebuilt from these")
                index = cls(version, width)
            index.catch_up(connection, beat=beat)
        return index

    @classmethod
    def build(cls, store: Store, feature_version: str, width: int, beat: Beat = lambda: None) -> Self:
        """Return an index made from the rows alone, whatever their number. Raises StoreUnavailableError."""
        index = cls(feature_version, width)
        with store.read() as connection:
            index._build(connection, None, beat)
        return index

    def __len__(self) -> int:
        return 0 if self._vectors is None else len(self._vectors)

    @property
    def ids(self) -> list[str]:
        return [name for name in self._names if name]

    @property
    def outgrown(self) -> bool:
        """Whether it was made for half as many rows as it holds, or holds as many places that are empty."""
        return max(len(self), len(self._names) - len(self)) >= 2 * max(1, self._made_for)

    def _agrees(self, connection: Connection) -> bool:
        # After a restore the rows may have come to the same revision by another way, at another time.
        past = self.revision <= current_revision(connection)
        return past and self._mark == newest_write(connection, self.feature_version, self.revision)

    def catch_up(
        self, connection: Connection, coming: Floats | None = None, beat: Beat = lambda: None
    ) -> None:
        """Take in the rows written since the last time, as this transaction sees them; let go the dropped.

        coming, raw float32 (n, F), are features that will soon be rows: they help to find the
        scale while there are few.
        """
        if self._vectors is None:
            self._build(connection, coming, beat)
            return
        try:
            self._take_in(connection, beat)
        except BaseException:
            # Half of a write must not pass for all of it.
            self._vectors = None
            raise
        expected = len(self) + (0 if coming is None else len(coming))
        if 2 * self._made_for <= expected <= _IN_PLACE:
            self._build(connection, coming, beat)

    def _take_in(self, connection: Connection, beat: Beat) -> None:
        before = self.revision
        for new in changed_features(connection, self.feature_version, before):
            self._remove(new.dropped)
            self._add(new)
            self.revision = new.revision
            beat()
        if self.revision != before:
            self._mark = newest_write(connection, self.feature_version, self.revision)

    def _build(self, connection: Connection, coming: NDArray[np.float32] | None, beat: Beat) -> None:
        """Make it anew from the rows, some at a time; they are read once, and a sample of them before."""
        names = live_ids(connection, self.feature_version)
        chosen = np.random.default_rng(_SEED).permutation(len(names))[:SAMPLED]
        sample = select_features(connection, self.feature_version, [names[i] for i in np.sort(chosen)]).matrix
        raw = [m for m in (sample, coming) if m is not None and len(m)]
        if not raw:
            return
        some = np.concatenate(raw)
        self._scaling = Scaling.fit(some[:: max(1, len(some) // _SCALED_ON)])
        self._names, self._places = [], None
        self._made_for, self.revision = len(names) + len(some) - len(sample), -1
        self._pictures = PictureIndex()
        scaled = self.scale(some)
        self._vectors = IvfIndex.train(scaled, len(names), _SEED, beat)
        for block in stream_features(connection, self.feature_version):
            self._add(block)
            self.revision = max(self.revision, block.revision)
            beat()
        if self._vectors.cells > 1:
            log.info("index trained", exemplars=len(self), **self._vectors.fit(scaled, _SEED))
        self._mark = newest_write(connection, self.feature_version, self.revision)

    def _add(self, new: Features) -> None:
        if not new.ids:
            return
        assert self._vectors is not None
        places = np.arange(len(self._names), len(self._names) + len(new.ids))
        self._vectors.add(self.scale(new.matrix), places)
        self._pictures.add(new.picture_hashes, places)
        self._names.extend(new.ids)
        self._places = None
        self._unsaved += len(new.ids)

    def _remove(self, dropped: frozenset[str]) -> None:
        if not dropped or self._vectors is None:
            return
        gone = np.array([i for i, name in enumerate(self._names) if name in dropped], np.int64)
        self._vectors.remove(gone)
        self._pictures.remove(gone)
        for place in gone:
            self._names[place] = ""
        self._places = None
        self._unsaved += len(gone)

    def scale(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return features in the index's space, float32 (n, F), of raw ones of that shape.

        Euclidean distance there is the distance that `search` gives.
        """
        if self._scaling is None:
            raise ValueError("an index that never saw features has no scale")
        scaled = self._scaling.apply(raw) / np.float32(np.sqrt(raw.shape[1]))
        return np.ascontiguousarray(scaled, np.float32)

    def search(self, raw: NDArray[np.float32], k: int) -> list[list[Match]]:
        """Return for each row of raw, float32 (n, F), the k likest exemplars, the nearest first.

        Among many it finds nearly all of them, and their distances to a thousandth.
        """
        if not len(self) or self._vectors is None:
            return [[] for _ in raw]
        squared, places = self._vectors.search(self.scale(raw), min(k, len(self)))
        distances = np.sqrt(np.maximum(squared, 0))
        return [
            [Match(self._names[p], float(d)) for p, d in zip(*row, strict=True) if p >= 0]
            for row in zip(places, distances, strict=True)
        ]

    def places(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return where exemplars are, int64 (n,), for `at` and `nearest`; -1 of an absent one."""
        if self._places is None:
            self._places = {name: place for place, name in enumerate(self._names)}
        return np.array([self._places.get(name, -1) for name in ids], np.int64)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the scaled features at places, float32 (n, F), as `scaled` has them but of 16 bits."""
        if self._vectors is None:
            return np.zeros((0, self.width), np.float32)
        return self._vectors.at(places)[:, : self.width]

    def nearest(self, place: int, k: int, among: NDArray[np.int64]) -> list[Match]:
        """Return the k nearest to the item at a place, of those at other places, nearest first; exact."""
        if self._vectors is None or not len(among):
            return []
        squared, places = self._vectors.nearest_among(self.at(np.array([place]))[0], k, among)
        distances = np.sqrt(np.maximum(squared, 0))
        return [Match(self._names[p], float(d)) for p, d in zip(places, distances, strict=True)]

    def showing(self, picture_hashes: bytes) -> str | None:
        """Return the exemplar that shows the same as an item with these hashes; None where there is none."""
        place = self._pictures.nearest(picture_hashes)
        return None if place is None else self._names[place]

    def save(self, path: Path) -> None:
        """Write a snapshot, durably, where enough changed since the last to be worth it. Raises OSError."""
        if self._vectors is None or self._scaling is None:
            return
        if self._unsaved <= _SAVED_AFTER * len(self) and path.exists():
            return
        facts = {
            "format": _FORMAT,
            "feature_version": self.feature_version,
            "made_for": str(self._made_for),
            "revision": str(self.revision),
            "mark": self._mark,
        }
        hashes, hashes_of = self._pictures.content
        tensors: dict[str, NDArray[Any]] = {
            "hashes": hashes,
            "hashes_of": hashes_of,
            "centre": self._scaling.centre,
            "scale": self._scaling.scale,
            "names": np.frombuffer(json.dumps(self._names).encode(), np.uint8),
        }
        _write(path, tensors, facts, self._vectors)
        self._unsaved = 0

    def _load(self, path: Path) -> None:
        with open_snapshot(path) as saved:
            facts, tensors = saved.facts, saved.tensors
            if facts["format"] != _FORMAT or facts["feature_version"] != self.feature_version:
                raise IndexSnapshotError("the snapshot is of another format or feature version")
            self._scaling = Scaling(tensors["centre"], tensors["scale"])
            self._names = json.loads(tensors["names"].tobytes())
            self._made_for, self.revision = int(facts["made_for"]), int(facts["revision"])
            self._mark = facts["mark"]
            self._pictures.put(tensors["hashes"], tensors["hashes_of"])
            self._vectors = IvfIndex.read(saved.file)


class IndexSnapshotError(Exception):
    """The snapshot is missing, damaged, or of other features: not an error but a reason to rebuild."""


@dataclass(frozen=True)
class IndexSnapshot:
    """Arrays by name, facts about them, and the file that stands where the vectors begin."""

    tensors: Mapping[str, NDArray[Any]]
    facts: Mapping[str, str]
    file: BinaryIO


def _write(path: Path, tensors: dict[str, NDArray[Any]], facts: dict[str, str], vectors: IvfIndex) -> None:
    """Put a snapshot in place of an older one. Raises OSError.

    The file is the SHA-256 of what follows, a length, a safetensors value of that length, and FAISS's bytes.
    """
    value = save(tensors, metadata=facts)
    with file_aside(path) as aside, aside.open("w+b") as file:
        file.write(bytes(_DIGEST_BYTES) + len(value).to_bytes(_LENGTH_BYTES, "little") + value)
        vectors.write(file)
        digest = _digest(file)
        file.seek(0)
        file.write(digest)


@contextmanager
def open_snapshot(path: Path) -> Iterator[IndexSnapshot]:
    """Yield the snapshot at path. Raises IndexSnapshotError: there is none, or a byte has changed."""
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
