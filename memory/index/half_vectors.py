"""Vectors rounded to 16 bits, by place; memory grows by blocks, so that none is ever copied."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memory.index.vectors import Vectors

_BLOCK = 65_536
"""Places in a block; the system gives memory only to those that were written."""
_AT_ONCE = 4096


class HalfVectors:
    """Vectors of one width, float16. For one thread at a time."""

    def __init__(self, width: int) -> None:
        """Hold none."""
        self._width = width
        self._blocks: list[NDArray[np.float16]] = []
        self._held: list[NDArray[np.bool_]] = []

    def put(self, some: Vectors) -> None:
        """Keep vectors at their places, from 0."""
        for block, mine in self._by_block(some.places):
            while block >= len(self._blocks):
                self._blocks.append(np.empty((_BLOCK, self._width), np.float16))
                self._held.append(np.zeros(_BLOCK, bool))
            within = some.places[mine] % _BLOCK
            self._blocks[block][within] = some.matrix[mine]
            self._held[block][within] = True

    def remove(self, places: NDArray[np.int64]) -> None:
        """Let go of what is at these places. Their memory stays as long as this object does."""
        for block, mine in self._by_block(places):
            self._held[block][places[mine] % _BLOCK] = False

    def at(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors at these places, int64 (n,), as float32 (n, F)."""
        found = np.empty((len(places), self._width), np.float32)
        for block, mine in self._by_block(places):
            found[mine] = self._blocks[block][places[mine] % _BLOCK]
        return found

    def squared_distances(
        self, vectors: NDArray[np.float32], places: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return how far each vector, (n, F), is from those at its places, (n, m): float32 (n, m).

        Infinitely far is a place of -1.
        """
        distances = np.full(places.shape, np.inf, np.float32)
        for row, (vector, mine) in enumerate(zip(vectors, places, strict=True)):
            there = np.flatnonzero(mine >= 0)
            apart = self.at(mine[there]) - vector
            distances[row, there] = np.einsum("ij,ij->i", apart, apart)
        return distances

    def parts(self) -> Iterator[Vectors]:
        """Yield all vectors, some at a time, by their places."""
        for block, (matrix, held) in enumerate(zip(self._blocks, self._held, strict=True)):
            for first in range(0, _BLOCK, _AT_ONCE):
                within = first + np.flatnonzero(held[first : first + _AT_ONCE])
                if len(within):
                    yield Vectors(block * _BLOCK + within, matrix[within])

    def _by_block(self, places: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the number of each block that has some of the places, and which of them."""
        blocks = places // _BLOCK
        for block in np.unique(blocks):
            yield int(block), np.flatnonzero(blocks == block)
