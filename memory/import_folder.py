"""Labelled folders enter the memory: DIR/FAMILY/[GROUP/]FILE, the folder `real` or `0_real` holds reals."""

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingest.decode import DecodeError
from ingest.records import CropPlan, Decoded, MediaPlan
from ingest.sandbox import Sandbox
from memory.crop_store import CropStore
from memory.features import FEATURE_VERSION, WIDTH, ItemFeatures, one_torch_thread
from memory.index import Index
from memory.intake import Arrival, UnfitItemError, check, remember
from memory.labels import LabelError, checked_name, extend_label, open_label
from memory.records import REAL
from memory.rows import exemplars_of, known_ids
from memory.settings import MemorySettings
from memory.shelves import IGNORE
from memory.store import ExemplarMemoryError, Store

_REAL_FOLDERS = (REAL, "0_real")
_BATCH_ITEMS = 32
_MOST_PENDING_ITEMS = 3 * _BATCH_ITEMS
_MOST_PENDING_BYTES = 256 * 2**20


class ImportFolderError(ExemplarMemoryError):
    """Fatal: the folder as a whole cannot be imported."""


@dataclass(frozen=True)
class Skipped:
    """A file that was not imported: its path below the folder, and why, in one line."""

    path: str
    reason: str


@dataclass
class Imported:
    """What an import did. new counts by class; already counts files that the memory held before."""

    new: Counter[str] = field(default_factory=Counter)
    already: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """the label of each class, which undoes this import's part of it"""


@dataclass(frozen=True)
class _File:
    path: Path
    name: str
    family: str
    group: str | None


@dataclass(frozen=True)
class _Decoding:
    file: _File
    digest: str
    size_bytes: int
    future: "Future[Decoded]"


_Batch = list[tuple[_Decoding, Decoded]]


def import_folder(
    folder: Path,
    store: Store,
    crops: CropStore,
    sandbox: Sandbox,
    plan: CropPlan,
    settings: MemorySettings,
    *,
    actor: str,
    max_file_bytes: int,
    progress: Callable[[int, int], None],
) -> Imported:
    """Remember and label every file of a folder; a file that cannot be read is reported and left out.

    A file's id is its content's: to import again, after an interruption too, adds only what is
    missing. GROUP names files that must stay on one side of the split, across families. progress is
    called with (done, of all). Raises ImportFolderError, LabelError (an actor without a name),
    StoreUnavailableError, CropsUnavailableError or SandboxStartError.
    """
    done = Imported()
    files = list(_files(folder, done))
    index = Index.open(settings.index_path, store, FEATURE_VERSION, WIDTH)
    writer = _Writer(folder.resolve().name, store, crops, index, settings, actor, done)
    finished = len(done.skipped)
    total = finished + len(files)
    progress(finished, total)
    features = ItemFeatures(plan.crop_px)
    threads = len(os.sched_getaffinity(0))
    # Whole batches go to threads, so torch needs none of its own.
    with one_torch_thread(), ThreadPoolExecutor(threads) as pool:
        computing: deque[tuple[_Batch, Future[NDArray[np.float32]]]] = deque()
        batch: _Batch = []
        for decoding in _decodings(files, store, sandbox, plan, max_file_bytes, done):
            if decoding is not None:
                try:
                    batch.append((decoding, decoding.future.result()))
                except DecodeError as error:
                    done.skipped.append(Skipped(decoding.file.name, f"{error.reason}: {error}"))
            finished += 1
            progress(finished, total)
            if len(batch) == _BATCH_ITEMS:
                computing.append((batch, pool.submit(features, [decoded.crops for _, decoded in batch])))
                batch = []
            if len(computing) > threads:
                full, rows = computing.popleft()
                writer.write(full, rows.result())
        for full, rows in computing:
            writer.write(full, rows.result())
        if batch:
            writer.write(batch, features([decoded.crops for _, decoded in batch]))
    return done


class _Writer:
    """Turns decoded files into rows with their labels, a batch a transaction."""

    def __init__(
        self,
        source: str,
        store: Store,
        crops: CropStore,
        index: Index,
        settings: MemorySettings,
        actor: str,
        done: Imported,
    ) -> None:
        self._source, self._actor, self._done = f"import:{source}", actor, done
        self._store, self._crops, self._index = store, crops, index
        self._near = settings.near_duplicate_distance

    def write(self, batch: _Batch, features: NDArray[np.float32]) -> None:
        arrivals: dict[str, tuple[_File, Arrival]] = {}
        for (decoding, decoded), row in zip(batch, features, strict=True):
            try:
                arrival = check(self._arrival(decoding, decoded, row))
            except UnfitItemError as error:
                self._done.skipped.append(Skipped(decoding.file.name, str(error)))
                continue
            twin = arrivals.setdefault(arrival.id, (decoding.file, arrival))[0]
            if twin is not decoding.file:
                _note_known(self._done, decoding.file, twin.family)
        new = [arrival for _, arrival in arrivals.values()]
        digests = [self._crops.put(arrival.crops) for arrival in new]
        labels = dict(self._done.labels)
        with self._store.write() as connection:
            remembered = remember(connection, self._crops, self._index, new, digests, self._near)
            by_family: dict[str, list[str]] = {}
            for item in remembered.new:
                by_family.setdefault(arrivals[item][0].family, []).append(item)
            for family, ids in by_family.items():
                if family not in labels:
                    labels[family] = open_label(connection, family, self._actor)
                extend_label(connection, labels[family], ids)
        self._done.labels = labels
        self._done.new.update({family: len(ids) for family, ids in by_family.items()})
        for item in arrivals.keys() - set(remembered.new):
            self._report_known(arrivals[item][0], arrivals[item][1].media_digest)

    def _report_known(self, file: _File, digest: str) -> None:
        _note_known(self._done, file, _label_of(self._store, digest) or "")

    def _arrival(self, decoding: _Decoding, decoded: Decoded, features: NDArray[np.float32]) -> Arrival:
        return Arrival(
            id=_id(decoding.digest),
            media_digest=decoding.digest,
            source=self._source,
            crops=decoded.crops,
            features=features,
            embedding=None,
            group=decoding.file.group,
            release=None,
            unknown_score=None,
            received_at=datetime.now(UTC),
            verdict=None,
        )


def _decodings(
    files: list[_File], store: Store, sandbox: Sandbox, plan: CropPlan, max_file_bytes: int, done: Imported
) -> Iterator[_Decoding | None]:
    """Yield what is being decoded, in the files' order; None for a file that needs no decoding."""
    pending: deque[_Decoding] = deque()
    for file in files:
        data = _read(file, max_file_bytes, done)
        if data is None:
            yield None
            continue
        digest = hashlib.sha256(data).hexdigest()
        label = _label_of(store, digest)
        if label is not None:
            _note_known(done, file, label)
            yield None
            continue
        pending.append(_Decoding(file, digest, len(data), sandbox.submit(data, MediaPlan(crops=plan))))
        while len(pending) > _MOST_PENDING_ITEMS or sum(p.size_bytes for p in pending) > _MOST_PENDING_BYTES:
            yield pending.popleft()
    yield from pending


def _read(file: _File, max_file_bytes: int, done: Imported) -> bytes | None:
    try:
        with file.path.open("rb") as opened:
            data = opened.read(max_file_bytes + 1)
    except OSError as error:
        done.skipped.append(Skipped(file.name, f"cannot be read: {error.strerror}"))
        return None
    if len(data) > max_file_bytes:
        done.skipped.append(Skipped(file.name, f"too_large: more than {max_file_bytes} bytes"))
        return None
    return data


def _label_of(store: Store, digest: str) -> str | None:
    """Return what the import of these bytes is called now ("" for nothing); None if never imported."""
    with store.read() as connection:
        if not known_ids(connection, [_id(digest)]):
            return None
        return exemplars_of(connection, [_id(digest)])[0].family or ""


def _note_known(done: Imported, file: _File, family: str) -> None:
    if family == file.family:
        done.already += 1
    else:
        what = f"as {family}" if family else "and has no label"
        done.skipped.append(Skipped(file.name, f"the same bytes are in the memory {what}"))


def _id(digest: str) -> str:
    return f"import-{digest}"


def _files(folder: Path, done: Imported) -> Iterator[_File]:
    """Yield the files below the families' folders, sorted; report what lies elsewhere."""
    if not folder.is_dir():
        raise ImportFolderError(f"{folder} is no folder")
    found = 0
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        found += 1
        name = "/".join(parts)
        family = REAL if parts[0] in _REAL_FOLDERS else parts[0]
        if len(parts) == 1:
            done.skipped.append(Skipped(name, "lies in no family's folder"))
            continue
        try:
            checked_name(family)
        except LabelError as error:
            done.skipped.append(Skipped(name, str(error)))
            continue
        if family == IGNORE:
            done.skipped.append(Skipped(name, "a folder cannot be ignored by its name"))
            continue
        yield _File(path, name, family, parts[1] if len(parts) > 2 else None)
    if not found:
        raise ImportFolderError(f"{folder} holds no files; expected DIR/FAMILY/[GROUP/]FILE")
