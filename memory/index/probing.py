"""How far a search of cells must look, learnt from vectors that are at once its queries."""

import math

import faiss
import numpy as np
from numpy.typing import NDArray

from memory.index.ivf_index import Cells
from memory.index.vectors import Vectors

_NEAREST = 10
_QUERIES = 256
_RECALL = 0.97
"""Share of the 10 nearest that a search must find of the queries it is fitted on: the promise is 0.95."""
_IN_CELLS = 0.98
"""Share of them that must lie in the cells it looks into."""
_MEASURED = (64, 128, 256, 512, 1024)
"""How many vectors may be measured by themselves."""


class Probing:
    """Learns while the vectors are added to the cells."""

    def __init__(self, cells: Cells, sample: NDArray[np.float32], seed: int) -> None:
        """Draw the queries from a sample, float32 (n, F), of the vectors."""
        chosen = np.random.default_rng(seed).choice(len(sample), min(_QUERIES, len(sample)), replace=False)
        self._cells, self._queries = cells, sample[chosen]
        # A query finds itself first, which says nothing.
        self._nearest = faiss.ResultHeap(len(chosen), _NEAREST + 1)

    def see(self, some: Vectors) -> None:
        """Compare the queries with vectors; each is to be seen once."""
        distances, found = faiss.knn(
            self._queries, some.matrix.astype(np.float32), min(_NEAREST + 1, len(some.places))
        )
        self._nearest.add_result(distances, some.places[found])

    def fit(self) -> dict[str, float]:
        """Let searches look so far that the promised share of the nearest is found; return how far."""
        self._nearest.finalize()
        nearest = self._nearest.I[:, 1:]
        ranks = np.sort(self._cells.ranks(self._queries, nearest), axis=None)
        self._cells.probed = 1 + int(ranks[max(0, math.ceil(_IN_CELLS * ranks.size) - 1)])
        recall = 0.0
        for self._cells.measured in _MEASURED:
            found = self._cells.search(self._queries, _NEAREST + 1)[1]
            recall = float(np.mean([np.isin(*both) for both in zip(nearest, found, strict=True)]))
            if recall >= _RECALL:
                break
        return {
            "cells": self._cells.count,
            "probed": self._cells.probed,
            "measured": self._cells.measured,
            "recall": round(recall, 3),
        }
