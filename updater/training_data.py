"""Labelled crops as the learners and the calibration read them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class LabelledCrops:
    """n labelled items and their crops, all of one side S."""

    ids: tuple[str, ...]
    """length n"""
    families: tuple[str, ...]
    """length n: the class of each item, "real" or a forgery family"""
    sources: tuple[str, ...]
    """length n: where each item came from"""
    crops: npt.NDArray[np.uint8]
    """[T, S, S, 3], RGB"""
    starts: npt.NDArray[np.int64]
    """[n + 1]: rows starts[i]:starts[i + 1] of crops are item i's"""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, items: Iterable[int]) -> "LabelledCrops":
        """Return these items, in this order."""
        chosen = list(items)
        counts = [int(self.starts[i + 1] - self.starts[i]) for i in chosen]
        rows = [np.arange(self.starts[i], self.starts[i + 1]) for i in chosen]
        return LabelledCrops(
            ids=tuple(self.ids[i] for i in chosen),
            families=tuple(self.families[i] for i in chosen),
            sources=tuple(self.sources[i] for i in chosen),
            crops=self.crops[np.concatenate(rows)] if rows else self.crops[:0],
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        )
