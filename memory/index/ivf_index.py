"""Vectors in cells, of which a search looks into few: an inverted file of FAISS, trained from the vectors.

IVF and not HNSW: what retention drops leaves the index, which FAISS's HNSW cannot do, and to add an item
costs one comparison with the cells' centres and not a walk through a graph. A search looks through a
product quantizer's codes of 4 bits for two numbers, by vector instructions (André, Kermarrec and Le
Scouarnec, "Quicker ADC", 2019), and measures the nearest of these anew by the vectors themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from memory.index.half_vectors import HalfVectors
from memory.index.vectors import Vectors

SAMPLED = 100_000
"""Vectors that are enough to train on, however many there are."""

_ITERATIONS = 8
_EACH = 32
"""Vectors a cell is trained on."""
_CODE_BITS = 4
_CODED_ON = 4096
"""Vectors the codes are trained on: they have 16 values each."""
_CODE_ITERATIONS = 10
_FEW = 64
"""Vectors at once that one thread is best for: beside busy processes, threads wait longer than they work."""


class Cells:
    """Vectors of one width, each at a place, an integer of the caller's from 0. For one thread at a time.

    probed: cells that a search looks into. measured: vectors found there that are measured by themselves.
    """

    kept_as = np.dtype(np.float16)
    """What vectors are rounded to; distances are of those."""

    def __init__(self, index: Any, probed: int = 1, measured: int = 1) -> None:
        """Take over a FAISS index; `trained` makes one that is empty, and `load` one as it was saved."""
        self._index = index
        self._vectors = HalfVectors(int(index.d))
        self.measured = measured
        self.probed = probed

    @classmethod
    def trained(
        cls, sample: NDArray[np.float32], count: int, seed: int, beat: Callable[[], None] = lambda: None
    ) -> Self:
        """Train cells for about count vectors on a sample of them, float32 (n, F), n >= 1.

        beat is called between the rounds of k-means, which a FAISS for GPUs runs on them. The same sample,
        count, seed and number of threads give the same cells; on GPUs only nearly so.
        """
        width = sample.shape[1]
        centres = faiss.IndexFlatL2(width)
        centres.add(_means(sample, max(1, min(2 * round(count**0.5), len(sample) // _EACH)), seed, beat))
        codes = width // 2 if width % 2 == 0 else width
        index = faiss.IndexIVFPQFastScan(centres, width, centres.ntotal, codes, _CODE_BITS)
        # Of the vectors and not of what is left of them in a cell: so one table serves all cells of a search.
        index.by_residual = False
        index.pq.cp.niter, index.pq.cp.seed = _CODE_ITERATIONS, seed
        beat()
        index.train(sample[:: max(1, len(sample) // _CODED_ON)][:_CODED_ON])
        return cls(index)

    @classmethod
    def load(cls, saved: NDArray[np.uint8], probed: int, measured: int) -> Self:
        """Return the cells that `saved` of others gave; `restore` is to give them each of their vectors."""
        return cls(faiss.deserialize_index(saved), probed, measured)

    def saved(self) -> NDArray[np.uint8]:
        """Return these cells with the codes of their vectors, but without these, as bytes, uint8 (n,)."""
        return faiss.serialize_index(self._index)

    @property
    def count(self) -> int:
        """How many cells there are."""
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

    def add(self, some: Vectors) -> None:
        """Take in vectors at places that had none before."""
        if len(some.places):
            with threads_for(len(some.places)):
                self._index.add_with_ids(some.matrix.astype(np.float32), some.places)
            self._vectors.put(some)

    def restore(self, some: Vectors) -> None:
        """Take in vectors whose codes were loaded."""
        self._vectors.put(some)

    def remove(self, places: NDArray[np.int64]) -> None:
        """Take out what is at these places, int64 (n,); looks through all."""
        if len(places):
            self._index.remove_ids(places)
            self._vectors.remove(places)

    def search(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the squared distances and places of the k nearest that each vector finds, (n, k) each.

        A place is -1, and its distance infinite, where fewer were found.
        """
        with threads_for(len(vectors)):
            _, likely = self._index.search(vectors, max(k, self.measured))
        exact = self._vectors.squared_distances(vectors, likely)
        order = np.argsort(exact, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(exact, order, axis=1), np.take_along_axis(likely, order, axis=1)

    def ranks(self, vectors: NDArray[np.float32], of: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many cells a search for vectors, (n, F), looks into before those of places, (n, m)."""
        quantizer = self._index.quantizer
        cells = quantizer.search(self._vectors.at(of.ravel()), 1)[1].reshape(of.shape)
        turn = np.argsort(quantizer.search(vectors, self.count)[1], axis=1)
        return np.take_along_axis(turn, cells, axis=1)

    def parts(self) -> Iterator[Vectors]:
        """Yield all vectors, some at a time."""
        return self._vectors.parts()


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
def threads_for(count: int) -> Iterator[None]:
    """Let FAISS use one thread where only few vectors are at hand."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if count <= _FEW else before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
