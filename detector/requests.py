"""Sharing decoded items out over requests to TorchServe, none larger than it takes. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from detector.release.artifact import Artifact
from detector.release.contract import body_bytes
from ingest.records import Decoded, InRecord, MediaItem

MOST_CROPS = 256
"""Of one request, unless one item has more: small crops, whose scores take longer than their bytes."""


@dataclass(frozen=True)
class Ready:
    """An item that waits for its scores: its place in the batch, who scores it, what it is.

    media opens it again, for a second look.
    """

    place: int
    record: InRecord
    artifact: Artifact
    item: MediaItem
    decoded: Decoded
    decode_s: float
    media: Callable[[], bytes]


def requests(ready: Sequence[Ready], max_crops: int, max_bytes: int) -> Iterator[list[Ready]]:
    """Split items into requests, each to one release and within both limits, or of a single item.

    The items of one release stay in their order.
    """
    for digest in dict.fromkeys(item.artifact.digest for item in ready):
        part: list[Ready] = []
        for item in (item for item in ready if item.artifact.digest == digest):
            longer = [*part, item]
            if part and (_crops(longer) > max_crops or request_bytes(longer) > max_bytes):
                yield part
                longer = [item]
            part = longer
        yield part


def request_bytes(part: Sequence[Ready]) -> int:
    """Bound from above the body of a request, bytes."""
    return body_bytes([item.decoded for item in part], part[0].artifact.manifest.contract)


def _crops(part: Sequence[Ready]) -> int:
    return sum(len(item.decoded.crops) for item in part)
