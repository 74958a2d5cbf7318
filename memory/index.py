"""Search by likeness: a FAISS index over the rows' features. A cache; the rows are the truth."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
import structlog
from numpy.typing import NDArray
from safetensors.numpy import load, save
from sqlalchemy import Connection

from ingest.durable import write_durably
from memory.rows import ids_up_to, select_features
from memory.scaling import Scaling
from memory.store import Store, current_revision

_DIGEST_BYTES = 32
_FORMAT = "1"
log = structlog.get_logger()


class _SnapshotError(Exception):
    """The snapshot is missing, damaged, or of other features: not an error but a reason to rebuild."""


@dataclass(frozen=True)
class Match:
    """An exemplar like the one asked for. distance is the root mean square over robustly scaled features."""

    id: str
    distance: float


class Index:
    """Every row with features of one version, in robustly scaled features.

    Not safe for use by several threads at once.
    """

    def __init__(self, feature_version: str, width: int) -> None:
        """Make an empty index for that version's features (F = width); `catch_up` fills it."""
        self.feature_version, self.width = feature_version, width
        self.revision = -1
        self.ids: list[str] = []
        self._scaling: Scaling | None = None
        self._fitted_on = 0
        self._faiss: Any = None

    @classmethod
    def open(cls, path: Path, store: Store, feature_version: str, width: int) -> Self:
        """Return the index of the snapshot at path, brought up to the rows; built from them without one.

        Raises StoreUnavailableError.
        """
        index = cls(feature_version, width)
        try:
            index._load(path)
        except _SnapshotError as reason:
            log.info("index is rebuilt from the rows", reason=str(reason))
        with store.read() as connection:
            if index.revision > current_revision(connection) or not index._agrees(connection):
                log.warning("index is of other rows, as after a restore; it is rebuilt from these")
                index = cls(feature_version, width)
            index.catch_up(connection)
        return index

    def _agrees(self, connection: Connection) -> bool:
        # After a restore the rows may have come to the same revision by another way.
        return set(self.ids) == ids_up_to(connection, self.feature_version, self.revision)

    def catch_up(self, connection: Connection, coming: NDArray[np.float32] | None = None) -> None:
        """Take in the rows written since the last time, as this transaction sees them.

        coming, raw float32 (n, F), are features that will soon be rows: they help to find the
        scale while there are few.
        """
        new = select_features(connection, self.feature_version, after_revision=self.revision)
        known = len(self.ids) + len(new.ids)
        expected = known + (0 if coming is None else len(coming))
        if self._scaling is None or expected >= 2 * self._fitted_on:
            self._build(connection, coming)
        elif new.ids:
            self._add(new.ids, new.matrix)
            self.revision = new.revision

    def _build(self, connection: Connection, coming: NDArray[np.float32] | None) -> None:
        rows = select_features(connection, self.feature_version)
        sample = [m for m in (rows.matrix, coming) if m is not None and len(m)]
        if not sample:
            return
        raw = np.concatenate(sample)
        self._scaling, self._fitted_on = Scaling.fit(raw), len(raw)
        self.ids, self.revision = [], rows.revision
        self._faiss = faiss.IndexFlatL2(raw.shape[1])
        if rows.ids:
            self._add(rows.ids, rows.matrix)

    def _add(self, ids: tuple[str, ...], raw: NDArray[np.float32]) -> None:
        self._faiss.add(self.scaled(raw))
        self.ids.extend(ids)

    def scaled(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return features in the index's space, float32 (n, F), of raw ones of that shape.

        Euclidean distance there is the distance that `search` gives.
        """
        if self._scaling is None:
            raise ValueError("an index that never saw features has no scale")
        scaled = self._scaling.apply(raw) / np.float32(np.sqrt(raw.shape[1]))
        return np.ascontiguousarray(scaled, np.float32)

    def search(self, raw: NDArray[np.float32], k: int) -> list[list[Match]]:
        """Return for each row of raw, float32 (n, F), the k likest exemplars, the nearest first."""
        if not self.ids:
            return [[] for _ in raw]
        squared, places = self._faiss.search(self.scaled(raw), min(k, len(self.ids)))
        distances = np.sqrt(np.maximum(squared, 0))
        return [
            [Match(self.ids[p], float(d)) for p, d in zip(row_places, row_distances, strict=True)]
            for row_places, row_distances in zip(places, distances, strict=True)
        ]

    def save(self, path: Path) -> None:
        """Write a snapshot: aside, synced, with its digest, then renamed into place."""
        if self._scaling is None:
            return
        tensors: dict[str, NDArray[Any]] = {
            "index": faiss.serialize_index(self._faiss),
            "centre": self._scaling.centre,
            "scale": self._scaling.scale,
        }
        facts = {
            "format": _FORMAT,
            "feature_version": self.feature_version,
            "revision": str(self.revision),
            "fitted_on": str(self._fitted_on),
            "ids": json.dumps(self.ids),
        }
        value = save(tensors, metadata=facts)
        write_durably(path, hashlib.sha256(value).digest() + value)

    def _load(self, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _SnapshotError(f"no snapshot: {error.strerror}") from error
        digest, value = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(value).digest() != digest:
            raise _SnapshotError("the snapshot is damaged")
        tensors, facts = load(value), _metadata(value)
        if facts.get("format") != _FORMAT or facts.get("feature_version") != self.feature_version:
            raise _SnapshotError("the snapshot is of another format or feature version")
        self._scaling = Scaling(tensors["centre"], tensors["scale"])
        self._faiss = faiss.deserialize_index(tensors["index"])
        self.ids = json.loads(facts["ids"])
        self.revision, self._fitted_on = int(facts["revision"]), int(facts["fitted_on"])


def _metadata(value: bytes) -> dict[str, str]:
    length = int.from_bytes(value[:8], "little")
    facts: dict[str, str] = json.loads(value[8 : 8 + length])["__metadata__"]
    return facts
