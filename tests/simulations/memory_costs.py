"""What the memory's index costs at a size: to add, search, save and start; and how much it finds."""

import ctypes
import gc
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import faiss
import numpy as np
from numpy.typing import NDArray

from detector.release.manifest import FEATURE_VERSION
from memory.features import WIDTH
from memory.index.index import Index
from memory.records import Exemplar
from memory.rows import NewRow, insert_rows, stream_features
from memory.store import Store
from updater.progress import Progress

Kind = Literal["clustered", "spread"]
"""clustered: a hundred kinds of media. spread: one kind, with the covariance that forensic features have."""

_NEAREST = 10
_QUERIES = 256
_BATCH = 32
_BLOCK = 4096
_BATCHES = 16
_KINDS = 100
_WITHIN = 0.5
"""Deviation within a kind; that of the kinds' centres is 1."""


@dataclass(frozen=True)
class Costs:
    """Of one size. Times are in s, medians where a thing was done often; bytes are those written."""

    items: int
    kind: Kind
    add_s: float
    """an item, in batches of 32, with reading its row"""
    search_s: float
    """an item, in batches of 32, for its 10 nearest"""
    recall: float
    """share of the exact 10 nearest that were among those found"""
    build_s: float
    """start without a snapshot"""
    start_s: float
    """start with one"""
    start_bytes: int
    """memory that this start took, at its peak"""
    snapshot_s: float
    """the first snapshot"""
    snapshot_bytes: int
    next_s: float
    """the next snapshot, after 512 items more"""
    next_bytes: int


def measure(items: int, kind: Kind, folder: Path, seed: int, progress: Progress) -> Costs:
    """Fill an empty folder with a database of generated items and measure its index.

    Raises StoreUnavailableError, OSError.
    """
    draw = generated(kind, seed)
    store, path = Store(f"sqlite:///{folder / 'memory.sqlite'}"), folder / "index"
    try:
        _fill(store, draw, range(items), lambda done: progress(f"{kind}, rows", done, items))
        progress(f"{kind}, index", 0, 0)
        with _timed() as build:
            index = Index.open(path, store, FEATURE_VERSION, WIDTH)
        queries = draw(_QUERIES)
        recall = _recall(store, index, queries)
        search = _search(index, queries)
        with _timed() as first:
            index.save(path)
        add: list[float] = []
        for first_id in range(items, items + _BATCHES * _BATCH, _BATCH):
            _fill(store, draw, range(first_id, first_id + _BATCH))
            with store.read() as connection:
                started = time.perf_counter()
                index.catch_up(connection)
                add.append(time.perf_counter() - started)
        with _timed() as following:
            index.save(path)
        del index
        with _timed() as start:
            Index.open(path, store, FEATURE_VERSION, WIDTH)
    finally:
        store.close()
    return Costs(
        items=items,
        kind=kind,
        add_s=median(add) / _BATCH,
        search_s=median(search) / _BATCH,
        recall=recall,
        build_s=build.seconds,
        start_s=start.seconds,
        start_bytes=start.peak_bytes,
        snapshot_s=first.seconds,
        snapshot_bytes=first.written_bytes,
        next_s=following.seconds,
        next_bytes=following.written_bytes,
    )


def measure_all(sizes: Sequence[int], seed: int, progress: Progress) -> Iterator[Costs]:
    """Yield what `measure` finds at each size, for each kind of data, in folders that are removed again."""
    for items, kind in itertools.product(sizes, get_args(Kind)):
        with tempfile.TemporaryDirectory() as folder:
            yield measure(items, kind, Path(folder), seed, progress)


def generated(kind: Kind, seed: int) -> Callable[[int], NDArray[np.float32]]:
    """Return what draws so many items' raw features, float32 (n, WIDTH), other ones at each call.

    A few directions have most of the variance, the i-th 1 / i of the first, and none is along a feature.
    """
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0] / np.sqrt(np.arange(1, WIDTH + 1))[:, None]
    axes = axes.astype(np.float32)
    centres = rng.normal(size=(_KINDS, WIDTH)).astype(np.float32)

    def draw(count: int) -> NDArray[np.float32]:
        rows = rng.standard_normal((count, WIDTH), np.float32)
        if kind == "clustered":
            rows = centres[rng.integers(_KINDS, size=count)] + np.float32(_WITHIN) * rows
        return np.asarray(rows @ axes, np.float32)

    return draw


def _fill(
    store: Store,
    draw: Callable[[int], NDArray[np.float32]],
    numbers: range,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    for start in range(0, len(numbers), _BLOCK):
        some = numbers[start : start + _BLOCK]
        rows = [_row(number, features) for number, features in zip(some, draw(len(some)), strict=True)]
        with store.write() as connection:
            insert_rows(connection, rows)
        progress(start + len(some))


def _row(number: int, features: NDArray[np.float32]) -> NewRow:
    name = f"forgewatch.media-0-{number}"
    exemplar = Exemplar(
        id=name,
        media_digest=f"{number:064x}",
        crops_digest=None,
        source="generated",
        group=name,
        shelf="unknown",
        family=None,
        split=None,
        release=None,
        unknown_score=None,
        received_at=datetime.now(UTC),
    )
    return NewRow(exemplar, 1, features, FEATURE_VERSION, None, None)


def _recall(store: Store, index: Index, queries: NDArray[np.float32]) -> float:
    """Return how many of each query's exact nearest items, over all rows, the index finds."""
    asked = index.scale(queries)
    nearest = faiss.ResultHeap(len(asked), min(_NEAREST, len(index)))
    names: list[str] = []
    with store.read() as connection:
        for block in stream_features(connection, FEATURE_VERSION):
            distances, places = faiss.knn(asked, index.scale(block.matrix), min(_NEAREST, len(block.ids)))
            nearest.add_result(distances, places + len(names))
            names += block.ids
    nearest.finalize()
    found = index.search(queries, _NEAREST)
    hits = [
        len({names[place] for place in places} & {match.id for match in matches}) / len(places)
        for places, matches in zip(nearest.I, found, strict=True)
    ]
    return float(np.mean(hits))


def _search(index: Index, queries: NDArray[np.float32]) -> list[float]:
    """Return the seconds of each batch's search."""
    times = []
    for first in range(0, len(queries), _BATCH):
        started = time.perf_counter()
        index.search(queries[first : first + _BATCH], _NEAREST)
        times.append(time.perf_counter() - started)
    return times


@dataclass
class _Timing:
    seconds: float = 0.0
    written_bytes: int = 0
    peak_bytes: int = 0


@contextmanager
def _timed() -> Iterator[_Timing]:
    """Yield a record that on leaving says how long it took, and what was written and held meanwhile."""
    timing = _Timing()
    # What is free but kept goes back, and Linux begins to look for the peak anew.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    held, written, started = _status("VmRSS"), _written(), time.perf_counter()
    yield timing
    timing.seconds = time.perf_counter() - started
    timing.written_bytes = _written() - written
    timing.peak_bytes = max(0, _status("VmHWM") - held)


def _written() -> int:
    """Return the bytes that this process gave to the system to be written, to whatever file."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(dict(line.split(":", 1) for line in lines)[name].split()[0])


def costs_json(found: Sequence[Costs], seed: int) -> str:
    """Return the costs, and what they are of."""
    return (
        json.dumps({"benchmark": "memory", "seed": seed, "sizes": [asdict(one) for one in found]}, indent=1)
        + "\n"
    )
