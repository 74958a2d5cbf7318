"""Which exemplars show the same picture: perceptual hashes, searched by their Hamming distance with FAISS.

A search compares with every hash: 256 bits are two dozen instructions, and no cell can leave one out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ingest.picture_hash import HASH_BYTES, INSETS, mirror_hashes
from memory.index.ivf_index import threads_for

NEAR_BITS = 64
"""Hashes of one picture differ in fewer bits, as a rule, and those of different ones in more: of 256."""
_NEAREST = 16


class PictureIndex:
    """Hashes of items' pictures, as `ingest.picture_hash` makes them, each item at a place, an integer.

    For one thread at a time.
    """

    def __init__(self) -> None:
        # FAISS's stubs miss what it adds to its classes in Python.
        self._flat: Any = faiss.IndexBinaryFlat(8 * HASH_BYTES)
        self._codes: Any = faiss.IndexBinaryIDMap(self._flat)

    def add(self, hashes: Sequence[bytes], places: Iterable[int]) -> None:
        """Take in items' hashes, at their places; an item may have no hash."""
        at = np.repeat(np.fromiter(places, np.int64), [len(digests) // HASH_BYTES for digests in hashes])
        self.put(_matrix(b"".join(hashes)), at)

    def put(self, codes: NDArray[np.uint8], places: NDArray[np.int64]) -> None:
        """Take in hashes, (n, HASH_BYTES), each at its place, (n,), as `content` returns them."""
        if len(places):
            self._codes.add_with_ids(codes, places)

    @property
    def content(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """All hashes and their places."""
        codes = faiss.vector_to_array(self._flat.xb).reshape(-1, HASH_BYTES)
        return codes, faiss.vector_to_array(self._codes.id_map)

    def remove(self, places: NDArray[np.int64]) -> None:
        """Remove the hashes at these places; looks through all."""
        if len(places):
            self._codes.remove_ids(places)

    def nearest(self, hashes: bytes) -> int | None:
        """Return the place of the item that shows the same, also mirrored; None where there is none.

        It shows more than half of the pictures (the frames of a video) that have these hashes: of several
        such items the one that shows most of them, and of these the nearest.
        """
        codes = _matrix(hashes)
        if not len(codes) or not self._codes.ntotal:
            return None
        with threads_for(2 * len(codes)):
            distances, places = self._codes.search(
                np.concatenate([codes, mirror_hashes(codes)]), min(_NEAREST, self._codes.ntotal)
            )
        pictures = len(codes) // len(INSETS)
        nearest: dict[tuple[int, int], int] = {}
        for row, column in np.argwhere(distances <= NEAR_BITS):
            pair = int(places[row, column]), int(row) % len(codes) // len(INSETS)
            nearest[pair] = min(int(distances[row, column]), nearest.get(pair, NEAR_BITS))
        matches = Counter(place for place, _ in nearest)
        apart = Counter[int]()
        for (place, _), distance in nearest.items():
            apart[place] += distance
        likest = min(matches, key=lambda place: (-matches[place], apart[place], place), default=None)
        return likest if likest is not None and 2 * matches[likest] > pictures else None


def _matrix(hashes: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)
