"""`JudgedItem`: an item with its verdict so far. `SecondLook`: the interface of a further pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from detector.looks.scan_places import Clip
from detector.records import Verdict
from detector.release.tensors import ModelOutput, Request
from ingest.records import Decoded, Plan

Ask = Callable[[Request], ModelOutput]
"""What one of the release's graphs says of a request."""


@dataclass(frozen=True)
class Evidence:
    """What a label was said of: the media as it was decoded, and the model's rows of that as a whole.

    features float32 (F,), raw forensic features; embedding float32 (D,). Where the label is unknown, this is
    what a person reviews, and what an update learns from.
    """

    decoded: Decoded
    features: NDArray[np.float32]
    embedding: NDArray[np.float32]


def evidence_of(items: Sequence[Decoded], output: ModelOutput) -> list[Evidence]:
    """Return the evidence of each of a request's items, whose rows are the output's first."""
    rows = zip(items, output["features"], output["embedding"], strict=False)
    return [Evidence(*row) for row in rows]


@dataclass(frozen=True)
class JudgedItem:
    """An item after a look: what is said of it and by what, and its media to decode again."""

    verdict: Verdict
    evidence: Evidence
    media: Callable[[], bytes]
    clip: Clip | None = None
    """None: no video, or the release has no scanner"""


class SecondLook(Protocol):
    """One thing that a release can say by looking at an item again."""

    @property
    def adds(self) -> str:
        """What it adds to a verdict, for the log; so many seconds it took by the timings' field `…_s`."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether it may be left out while records wait."""
        ...

    @property
    def most_crops(self) -> int:
        """Most crops of the items that are asked about in one request; 0: each item alone."""
        ...

    def looks_at(self, item: JudgedItem) -> bool:
        """Whether an item is looked at."""
        ...

    def plan(self, item: JudgedItem) -> Plan:
        """Return where to look in an item that is looked at. Raises ValueError where no plan is possible."""
        ...

    def added(self, items: Sequence[JudgedItem], decoded: Sequence[Decoded]) -> list[JudgedItem]:
        """Return the items with what was seen there. Raises whatever goes wrong with any of them."""
        ...
