"""Vectors in one list that every search looks through: exact, and quick enough for some ten thousand."""

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from memory.index.ivf_index import threads_for
from memory.index.vectors import Vectors

MOST = 20_000
"""Vectors that it is meant for."""

_AT_ONCE = 4096


class OneList:
    """Vectors of one width, each at a place, an integer of the caller's from 0. For one thread at a time."""

    kept_as = np.dtype(np.float32)

    def __init__(self, width: int) -> None:
        """Make a list without vectors."""
        self._rows: Any = faiss.IndexFlatL2(width)
        self._index: Any = faiss.IndexIDMap(self._rows)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, some: Vectors) -> None:
        """Take in vectors at places that had none before."""
        if len(some.places):
            self._index.add_with_ids(some.matrix, some.places)

    def remove(self, places: NDArray[np.int64]) -> None:
        """Take out what is at these places, int64 (n,)."""
        if len(places):
            self._index.remove_ids(places)

    def search(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the squared distances and places of the k nearest of each vector, (n, k) each.

        A place is -1 where there are fewer.
        """
        with threads_for(len(vectors)):
            return self._index.search(vectors, k)  # type: ignore[no-any-return]  # FAISS is untyped

    def parts(self) -> Iterator[Vectors]:
        """Yield all vectors, some at a time."""
        places = faiss.vector_to_array(self._index.id_map)
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            yield Vectors(some, self._rows.reconstruct_n(first, len(some)))
