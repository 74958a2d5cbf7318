"""Vectors in cells, of which a search looks into few: an inverted file of FAISS, trained from the vectors.

IVF and not HNSW: what retention drops leaves the index, which FAISS's HNSW cannot do, and to add an item
costs one comparison with the cells' centres and not a walk through a graph.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

EXACT_UP_TO = 20_000
"""Vectors that lie in one cell of float32, which is searched whole: exact, and quick enough."""

SAMPLED = 100_000
"""Vectors that are enough to train on, however many there are."""

_NEAREST = 10
_QUERIES = 256
_RECALL = 0.97
"""Share of the 10 nearest that a search must find of the queries it is fitted on: the promise is 0.95."""
_ITERATIONS = 8
_EACH = 32
"""Vectors a cell is trained on."""
_LISTS_AT_ONCE = 4096
_FEW = 64
"""Vectors at once that one thread is best for: beside busy processes, threads wait longer than they work."""


@dataclass(frozen=True)
class Entries:
    """Some vectors as the cells keep them. places is int64 (n,), codes uint8 (n, `Cells.code_bytes`)."""

    places: NDArray[np.int64]
    codes: NDArray[np.uint8]


class Cells:
    """Vectors of one width, each at a place, an integer of the caller's. For one thread at a time."""

    def __init__(self, index: Any) -> None:
        """Take over a trained FAISS index without entries; `trained` and `load` make it."""
        self._index = index
        self._empty: NDArray[np.uint8] = faiss.serialize_index(index)

    @classmethod
    def trained(
        cls, sample: NDArray[np.float32], count: int, seed: int, beat: Callable[[], None] = lambda: None
    ) -> Self:
        """Train cells for about count vectors on a sample of them, float32 (n, F), n >= 1.

        beat is called between the rounds of k-means, which a FAISS for GPUs runs on them. The same sample,
        count, seed and number of threads give the same cells; on GPUs only nearly so.
        """
        width = sample.shape[1]
        if count <= EXACT_UP_TO:
            one = faiss.IndexFlatL2(width)
            one.add(np.zeros((1, width), np.float32))
            index: Any = faiss.IndexIVFFlat(one, width, 1)
        else:
            centres = faiss.IndexFlatL2(width)
            centres.add(_means(sample, max(1, min(2 * round(count**0.5), len(sample) // _EACH)), seed, beat))
            index = faiss.IndexIVFScalarQuantizer(
                centres, width, centres.ntotal, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2, False
            )
        # The centres are there: what is left to train of either form is nothing that depends on the sample.
        index.train(sample[:1])
        return cls(index)

    @classmethod
    def load(cls, empty: NDArray[np.uint8], probed: int) -> Self:
        """Return the cells, without entries, that `empty` and `probed` of others describe."""
        cells = cls(faiss.deserialize_index(empty))
        cells.probed = probed
        return cells

    @property
    def empty(self) -> NDArray[np.uint8]:
        """These cells without their entries, as bytes, uint8 (n,)."""
        return self._empty

    @property
    def count(self) -> int:
        """How many cells there are; 1: every search is exact."""
        return int(self._index.nlist)

    @property
    def probed(self) -> int:
        """How many cells a search looks into."""
        return int(self._index.nprobe)

    @probed.setter
    def probed(self, count: int) -> None:
        self._index.nprobe = count

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def encoded(self, vectors: NDArray[np.float32], places: NDArray[np.int64]) -> Entries:
        """Return vectors, float32 (n, F), as they will be kept at these places, int64 (n,)."""
        with _threads_for(len(vectors)):
            return Entries(places, self._index.sa_encode(vectors))

    def add(self, entries: Entries) -> None:
        """Take in entries of these cells, or of cells that `load` made these of."""
        if len(entries.places):
            self._index.add_sa_codes(entries.codes, entries.places)

    def remove(self, places: NDArray[np.int64]) -> None:
        """Take out what is at these places, int64 (n,); looks through all."""
        if len(places):
            self._index.remove_ids(places)

    def search(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the squared distances and places of the k nearest that each vector finds, (n, k) each.

        A place is -1 where fewer were found.
        """
        with _threads_for(len(vectors)):
            return self._index.search(vectors, k)  # type: ignore[no-any-return]  # FAISS is untyped

    def cell_of(self, entries: Entries) -> NDArray[np.int64]:
        """Return the number of the cell of each entry, int64 (n,)."""
        bytes_ = entries.codes[:, : self._index.coarse_code_size()].astype(np.int64)
        return np.asarray(bytes_ @ 256 ** np.arange(bytes_.shape[1]), np.int64)

    def by_closeness(self, vectors: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return for each vector, float32 (n, F), the numbers of all cells in the order of a search."""
        return self._index.quantizer.search(vectors, self.count)[1]  # type: ignore[no-any-return]

    def entries(self) -> Iterator[Entries]:
        """Yield all entries, some at a time."""
        lists, size = self._index.invlists, self._index.code_size
        prefix = self._index.coarse_code_size()
        waiting: list[Entries] = []
        for cell in range(self._index.nlist):
            for first in range(0, lists.list_size(cell), _LISTS_AT_ONCE):
                waiting.append(self._part(cell, first, size, prefix))
                if sum(len(one.places) for one in waiting) >= _LISTS_AT_ONCE:
                    yield _joined(waiting)
                    waiting = []
        if waiting:
            yield _joined(waiting)

    def _part(self, cell: int, first: int, size: int, prefix: int) -> Entries:
        lists = self._index.invlists
        count = min(_LISTS_AT_ONCE, lists.list_size(cell) - first)
        places = faiss.rev_swig_ptr(lists.get_ids(cell), first + count)[first:].copy()
        codes = faiss.rev_swig_ptr(lists.get_codes(cell), (first + count) * size).reshape(-1, size)[first:]
        # FAISS reads a code with its cell's number before it, little-endian.
        number = np.frombuffer(cell.to_bytes(prefix, "little"), np.uint8)
        return Entries(places, np.concatenate([np.broadcast_to(number, (count, prefix)), codes], axis=1))


class Probing:
    """How many cells a search must look into, learnt from vectors that are at once its queries."""

    def __init__(self, cells: Cells, sample: NDArray[np.float32], seed: int) -> None:
        """Draw the queries from a sample, float32 (n, F), of the vectors."""
        chosen = np.random.default_rng(seed).choice(len(sample), min(_QUERIES, len(sample)), replace=False)
        self._cells, self._queries = cells, sample[chosen]
        # A query finds itself first, which says nothing.
        self._nearest = faiss.ResultHeap(len(chosen), _NEAREST + 1)
        self._cell_of: list[NDArray[np.int64]] = []

    def see(self, vectors: NDArray[np.float32], entries: Entries) -> None:
        """Compare the queries with vectors, float32 (n, F), and what they were encoded as.

        Each vector is to be seen once, and their places to count up from 0.
        """
        distances, found = faiss.knn(self._queries, vectors, min(_NEAREST + 1, len(vectors)))
        self._nearest.add_result(distances, entries.places[found])
        self._cell_of.append(self._cells.cell_of(entries))

    def fit(self) -> None:
        """Let the cells be searched so far that the promised share of the nearest is found."""
        self._nearest.finalize()
        cell_of = np.concatenate(self._cell_of)[self._nearest.I[:, 1:]]
        ranks = np.argsort(self._cells.by_closeness(self._queries), axis=1)
        turn = np.sort(np.take_along_axis(ranks, cell_of, axis=1), axis=None)
        self._cells.probed = 1 + int(turn[max(0, math.ceil(_RECALL * len(turn)) - 1)])


def _means(
    sample: NDArray[np.float32], count: int, seed: int, beat: Callable[[], None]
) -> NDArray[np.float32]:
    """Return count means of a sample by k-means, float32 (count, F)."""
    rng = np.random.default_rng(seed)
    some = sample[np.sort(rng.choice(len(sample), min(len(sample), count * _EACH), replace=False))]
    means = some[rng.choice(len(some), count, replace=False)]
    for turn in range(_ITERATIONS):
        # One round at a time: all of them can take longer than a process may be silent.
        beat()
        one = faiss.Kmeans(
            some.shape[1],
            count,
            niter=1,
            seed=seed + turn,
            min_points_per_centroid=1,
            max_points_per_centroid=len(some),
            gpu=faiss.get_num_gpus() > 0,
        )
        one.train(some, init_centroids=means)
        means = np.asarray(one.centroids, np.float32)
    return means


@contextmanager
def _threads_for(count: int) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if count <= _FEW else before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _joined(parts: list[Entries]) -> Entries:
    return Entries(np.concatenate([p.places for p in parts]), np.concatenate([p.codes for p in parts]))
