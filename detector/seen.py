"""What an item is after the first look, and what a second look at it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from detector.following import Corner
from detector.records import Verdict
from detector.tensors import ModelOutput, Request
from ingest.records import Decoded, PlacesPlan

Ask = Callable[[Request], ModelOutput]
"""What one of the release's graphs says of a request."""


@dataclass(frozen=True)
class Clip:
    """What the first look knows of a video beside its verdict."""

    length: int
    """how many frames the container holds"""
    elsewhere: Corner
    """where to look where no face was found"""


@dataclass(frozen=True)
class Seen:
    """An item after the first look: what is said of it, and its media to decode again."""

    verdict: Verdict
    media: Callable[[], bytes]
    clip: Clip | None = None
    """None: no video, or the release has no scanner"""


class SecondLook(Protocol):
    """One thing that a release can say by looking at an item again."""

    @property
    def adds(self) -> str:
        """The verdict's field that it fills, for the log."""
        ...

    def looks_at(self, one: Seen) -> bool:
        """Whether an item is looked at."""
        ...

    def plan(self, one: Seen) -> PlacesPlan:
        """Return where to look in an item that is looked at. Raises ValueError where no plan is possible."""
        ...

    def added(self, verdict: Verdict, decoded: Decoded) -> Verdict:
        """Return the verdict with what was seen there. Raises whatever goes wrong."""
        ...
