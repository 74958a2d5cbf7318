"""Vectors as 16-bit floats in an inverted file of FAISS; among many, a search looks through codes first.

The vectors are an `IndexIVFScalarQuantizer` of one cell, so that a search by them is exact. Beyond `ONE_CELL`
vectors, an inverted file of 4-bit product quantizer codes says which are likely near, by vector instructions
(André, Kermarrec and Le Scouarnec, "Quicker ADC", 2019), and these alone are measured by themselves. Cells of
16-bit floats without codes took 2.1 times as long to find as much among 200,000 vectors of one kind.

IVF and not HNSW: what retention drops leaves the index, which FAISS's HNSW cannot do, and to add an item
costs one comparison with the cells' centres and not a walk through a graph.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from memory.features import Floats

SAMPLED = 100_000
"""Vectors that are enough to train on, however many there are."""
ONE_CELL = 20_000
"""Up to so many vectors every search looks through all: half a millisecond at the most."""

_ITERATIONS = 8
_EACH = 32
"""Vectors a cell is trained on."""
_CODE_BITS = 4
_CODED_ON = 4096
"""Vectors the codes are trained on: they have 16 values each."""
_CODE_ITERATIONS = 10
_LANES = 16
"""FAISS compares 16-bit floats by vector instructions, 15 times faster, at multiples of this width."""
_NEAREST = 10
_QUERIES = 256
_RECALL = 0.97
"""Share of the 10 nearest of `_QUERIES` vectors that a search must find: the promise is 0.95."""
_IN_CELLS = 0.98
"""Share of them that must lie in the cells it looks into."""
_MEASURED = (64, 128, 256, 512, 1024)
"""How many vectors may be measured by themselves."""
_FEW = 64
"""Vectors at once that one thread is best for: beside busy processes, threads wait longer than they work."""


class IvfIndex:
    """Vectors of one width, each at a place, an integer of the caller's from 0. For one thread at a time.

    probed: cells of codes that a search looks into. measured: vectors found there that are measured by
    themselves. Where FAISS sees a GPU, searches run on a copy of the vectors there, and are exact; what is
    saved is the copy in memory.
    """

    def __init__(self, vectors: Any, codes: Any, measured: int = _MEASURED[0]) -> None:
        """Take over FAISS's indexes of vectors, and of their codes (None: no codes); `trained` makes them."""
        self._vectors, self._codes, self.measured = vectors, codes, measured
        self._rows: NDArray[np.int64] | None = None
        self._on_gpu: Any = None

    @classmethod
    def train(cls, sample: Floats, count: int, seed: int, beat: Callable[[], None] = lambda: None) -> Self:
        """Train an empty index for about count vectors on a sample of them, float32 (n, F), n >= 1.

        beat is called between the rounds of k-means, which a FAISS for GPUs runs on them. The same sample,
        count, seed and number of threads give the same index; on GPUs only nearly so.
        """
        sample = _pad_lanes(sample)
        width = sample.shape[1]
        middle = faiss.IndexFlatL2(width)
        middle.add(np.zeros((1, width), np.float32))
        half = faiss.ScalarQuantizer.QT_fp16
        vectors = faiss.IndexIVFScalarQuantizer(middle, width, 1, half, faiss.METRIC_L2, False)
        vectors.train(sample[:1])
        if count <= ONE_CELL or faiss.get_num_gpus():
            return cls(vectors, None)
        centres = faiss.IndexFlatL2(width)
        centres.add(_means(sample, max(1, min(2 * round(count**0.5), len(sample) // _EACH)), seed, beat))
        codes = faiss.IndexIVFPQFastScan(centres, width, centres.ntotal, width // 2, _CODE_BITS)
        # Of the vectors and not of what is left of them in a cell: so one table serves all cells of a search.
        codes.by_residual = False
        codes.pq.cp.niter, codes.pq.cp.seed = _CODE_ITERATIONS, seed
        beat()
        codes.train(sample[:: max(1, len(sample) // _CODED_ON)][:_CODED_ON])
        return cls(vectors, codes)

    @classmethod
    def read(cls, file: BinaryIO) -> Self:
        """Return the index that `write` wrote, from where the file stands."""
        measured = int.from_bytes(file.read(2))
        reader = faiss.PyCallbackIOReader(file.read)  # type: ignore[attr-defined]  # FAISS is untyped
        vectors = faiss.read_index(reader)
        return cls(vectors, faiss.read_index(reader) if measured else None, measured)

    def write(self, file: BinaryIO) -> None:
        """Write all to a file. Raises OSError."""
        file.write((self.measured if self._codes else 0).to_bytes(2))
        writer = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]  # FAISS is untyped
        for index in filter(None, (self._vectors, self._codes)):
            faiss.write_index(index, writer)

    @property
    def cells(self) -> int:
        return int(self._codes.nlist) if self._codes else 1

    @property
    def probes(self) -> int:
        return int(self._codes.nprobe) if self._codes else 1

    @probes.setter
    def probes(self, count: int) -> None:
        self._codes.nprobe = count

    def __len__(self) -> int:
        return int(self._vectors.ntotal)

    def add(self, matrix: NDArray[np.float32], places: NDArray[np.int64]) -> None:
        """Take in vectors, float32 (n, F), at places, (n,), that had none before."""
        if not len(places):
            return
        with threads_for(len(places)):
            for index in filter(None, (self._vectors, self._codes, self._on_gpu)):
                index.add_with_ids(_pad_lanes(matrix), places)
        self._rows = None

    def remove(self, places: NDArray[np.int64]) -> None:
        """Remove the vectors at these places, int64 (n,); looks through all."""
        if not len(places):
            return
        for index in filter(None, (self._vectors, self._codes)):
            index.remove_ids(places)
        # FAISS removes nothing on a GPU: the next search copies what is left.
        self._rows = self._on_gpu = None

    def search(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the squared distances and places of the k nearest that each vector finds, (n, k) each.

        A place is -1, and its distance without meaning, where fewer were found.
        """
        vectors = _pad_lanes(vectors)
        if self._on_gpu is None and faiss.get_num_gpus():
            self._on_gpu = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, self._vectors)
        with threads_for(len(vectors)):
            if self._codes is None or self._on_gpu:
                return (self._on_gpu or self._vectors).search(vectors, k)  # type: ignore[no-any-return]
            _, likely = self._codes.search(vectors, max(k, self.measured))
        exact = np.full(likely.shape, np.inf, np.float32)
        for row, (vector, places) in enumerate(zip(vectors, likely, strict=True)):
            there = np.flatnonzero(places >= 0)
            apart = self.at(places[there]) - vector
            exact[row, there] = np.einsum("ij,ij->i", apart, apart)
        order = np.argsort(exact, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(exact, order, axis=1), np.take_along_axis(likely, order, axis=1)

    def nearest_among(
        self, vector: NDArray[np.float32], k: int, places: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the squared distances and places of the k nearest of some places to a vector, float32 (F,).

        Exact, and on the processor. At most k, and at most as many as are there.
        """
        among = faiss.SearchParametersIVF(sel=faiss.IDSelectorBatch(places))  # type: ignore[call-arg]  # untyped
        with threads_for(1):
            distances, neighbours = self._vectors.search(_pad_lanes(vector[None]), k, params=among)
        there = neighbours[0] >= 0
        return distances[0, there], neighbours[0, there]

    def fit(self, sample: NDArray[np.float32], seed: int) -> dict[str, float]:
        """Let searches look so far that the promised share of the nearest is found; return how far.

        The queries are drawn from a sample, float32 (n, F), of the vectors that were added.
        """
        chosen = np.random.default_rng(seed).choice(len(sample), min(_QUERIES, len(sample)), replace=False)
        queries, recall = _pad_lanes(sample[chosen]), 1.0
        if self._codes:
            # A query finds itself first, which says nothing.
            nearest = self._vectors.search(queries, min(_NEAREST + 1, len(self)))[1][:, 1:]
            quantizer = self._codes.quantizer
            cells = quantizer.search(self.at(nearest.ravel()), 1)[1].reshape(nearest.shape)
            turns = np.argsort(quantizer.search(queries, self.cells)[1], axis=1)
            ranks = np.sort(np.take_along_axis(turns, cells, axis=1), axis=None)
            self.probes = 1 + int(ranks[max(0, math.ceil(_IN_CELLS * ranks.size) - 1)])
            for self.measured in _MEASURED:
                places = self.search(sample[chosen], _NEAREST + 1)[1]
                recall = float(np.mean([np.isin(*both) for both in zip(nearest, places, strict=True)]))
                if recall >= _RECALL:
                    break
        facts = {"cells": self.cells, "probed": self.probes, "measured": self.measured}
        return {**facts, "recall": round(recall, 3)}

    def at(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors at these places, int64 (n,), as float32, out of FAISS's own memory.

        Columns of zeros follow the F that were added, up to the width that FAISS is quick at.
        """
        if not len(places):
            return np.zeros((0, self._vectors.d), np.float32)
        lists, count = self._vectors.invlists, len(self)
        if self._rows is None:
            held = faiss.rev_swig_ptr(lists.get_ids(0), count)
            self._rows = np.empty(int(held.max()) + 1, np.int64)
            self._rows[held] = np.arange(count)
        codes = faiss.rev_swig_ptr(lists.get_codes(0), count * self._vectors.code_size)
        matrix = codes.view(np.float16).reshape(count, -1)
        return np.asarray(matrix[self._rows[places]], np.float32)


def _pad_lanes(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Add columns of zeros, which change no distance, up to a width that FAISS is quick at."""
    return np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % _LANES)))


def _means(sample: Floats, count: int, seed: int, beat: Callable[[], None]) -> Floats:
    """Return count means of a sample by k-means, float32 (count, F)."""
    rng = np.random.default_rng(seed)
    some = sample[np.sort(rng.choice(len(sample), min(len(sample), count * _EACH), replace=False))]
    means = some[rng.choice(len(some), count, replace=False)]
    for turn in range(_ITERATIONS if count > 1 else 0):
        # One round at a time: all of them can take longer than a process may be silent.
        beat()
        kmeans = faiss.Kmeans(
            some.shape[1],
            count,
            niter=1,
            seed=seed + turn,
            min_points_per_centroid=1,
            max_points_per_centroid=len(some),
            gpu=faiss.get_num_gpus() > 0,
        )
        kmeans.train(some, init_centroids=means)
        means = np.asarray(kmeans.centroids, np.float32)
    return means


@contextmanager
def threads_for(count: int) -> Iterator[None]:
    """Let FAISS use one thread where only few vectors are at hand."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if count <= _FEW else before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
