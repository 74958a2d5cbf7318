"""How an index's vectors lie in its snapshot, and come back from it."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from memory.index.ivf_index import Cells
from memory.index.one_list import OneList
from memory.index.snapshot import Record, SnapshotError
from memory.index.vectors import Vectors

_CODES_AT_ONCE = 2**26


def facts_of(held: Cells | OneList, codes: NDArray[np.uint8]) -> dict[str, str]:
    """Return what `Loading` is to know; codes: of cells what `saved` gave, of one list nothing."""
    if isinstance(held, OneList):
        return {"codes_bytes": "0"}
    return {"codes_bytes": str(len(codes)), "probed": str(held.probed), "measured": str(held.measured)}


def records_of(held: Cells | OneList, codes: NDArray[np.uint8]) -> Iterator[Record]:
    """Yield all vectors, after the codes of those that have some."""
    for first in range(0, len(codes), _CODES_AT_ONCE):
        yield Record({"codes": codes[first : first + _CODES_AT_ONCE]}, {})
    yield from map(record_of, held.parts())


def record_of(some: Vectors) -> Record:
    """Return the record of some vectors."""
    return Record({"places": some.places, "matrix": some.matrix}, {})


class Loading:
    """Puts together what `records_of` took apart, and what was added to it and removed since."""

    def __init__(self, facts: Mapping[str, str], width: int) -> None:
        """Begin with what `facts_of` gave."""
        self._facts = facts
        self._codes, self._filled = np.empty(int(facts["codes_bytes"]), np.uint8), 0
        self.held: Cells | OneList | None = None if len(self._codes) else OneList(width)
        self.whole = False
        """Whether all that `records_of` gave was taken: codes of what follows are to be computed."""

    def take(self, record: Record) -> None:
        """Take the next record in. Raises SnapshotError where it cannot be the next."""
        tensors = record.tensors
        if "codes" in tensors:
            part = tensors["codes"]
            self._codes[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == len(self._codes):
                self.held = Cells.load(self._codes, int(self._facts["probed"]), int(self._facts["measured"]))
                self._codes = np.zeros(0, np.uint8)
        elif self.held is None:
            raise SnapshotError("the snapshot has vectors before their codes")
        elif "removed" in tensors:
            self.held.remove(tensors["removed"])
        elif "matrix" in tensors:
            some = Vectors(tensors["places"], tensors["matrix"])
            if isinstance(self.held, Cells) and not self.whole:
                self.held.restore(some)
            else:
                self.held.add(some)
