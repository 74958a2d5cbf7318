"""Verdicts of items that never were, and the messages of the unknown ones."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from detector.records import RegionPrediction, Timings, Verdict
from detector.unknowns import encode
from detector.verdicts import ItemEvidence
from ingest.records import Decoded, MediaItem, Plan, Region
from ingest.sandbox.extract import extract
from memory.features import FEATURE_VERSION, WIDTH


def make_item(offset: int = 0, **changes: Any) -> MediaItem:
    """The media at this offset of partition 0 of the topic `media`."""
    usual: dict[str, Any] = {
        "topic": "media",
        "partition": 0,
        "offset": offset,
        "timestamp_ms": 0,
        "source": "camera",
        "digest": f"{offset:064x}",
        "size_bytes": 1,
    }
    return MediaItem(**usual | changes)


def make_verdict(item: MediaItem, **changes: Any) -> Verdict:
    """The verdict of a picture: unknown, unless said otherwise."""
    usual: dict[str, Any] = {
        "id": f"{item.topic}-{item.partition}-{item.offset}",
        "item": item,
        "kind": "image",
        "format": "PNG",
        "width": 32,
        "height": 32,
        "label": "unknown",
        "family": None,
        "family_probability": None,
        "fake_probability": 0.5,
        "energy": 0,
        "novelty": 1,
        "unknown_score": 3,
        "unknown_threshold": 2,
        "fake_threshold": 0.5,
        "neighbours": (),
        "regions": (),
        "release": "a" * 64,
        "timings": Timings(decode_s=0, model_s=0),
    }
    return Verdict(**usual | changes)


def make_region(kind: Any, frame: int, box: Any, fake_probability: float = 0.5) -> RegionPrediction:
    """What is said of a face or a frame of a video of ten frames a second."""
    said = {"label": "fake", "family": None, "family_probability": None, "fake_probability": fake_probability}
    return RegionPrediction(
        kind=kind, box=box, frame=frame, time_s=0.1 * frame, energy=0, novelty=1, unknown_score=0, **said
    )


def make_decoded(crops: int, regions: tuple[tuple[int, ...], ...] = (), size: int = 8) -> Decoded:
    """A picture whose crops are filled with how many they are; a face is shown by each of the regions."""
    pixels = np.full((crops, size, size, 3), crops, np.uint8)
    faces = tuple(Region("face", (0, 0, 8, 8), 0, None, rows) for rows in regions)
    return Decoded("image", "PNG", 100, 80, 1, pixels, faces)


def look(media: Callable[[], bytes], plan: Plan, spent_s: float = 0.0) -> "Future[Decoded]":
    """What the sandbox does, in this process."""
    future: Future[Decoded] = Future()
    try:
        future.set_result(extract(media(), plan, 1_000_000))
    except Exception as error:
        future.set_exception(error)
    return future


def make_evidence() -> ItemEvidence:
    """What the label of a black picture was said of."""
    decoded = Decoded("image", "PNG", 32, 32, 1, np.zeros((1, 32, 32, 3), np.uint8), ())
    return ItemEvidence(decoded, np.zeros(WIDTH, np.float32), np.zeros(4, np.float32))


def unknown_message(offset: int, content: int | None = None) -> bytes:
    """The unknown item of the media at this offset; the same content has the same digest and crops."""
    number = offset if content is None else content
    rng = np.random.default_rng(number)
    verdict = make_verdict(make_item(offset, digest=f"{number:064x}"))
    crops = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    features = rng.normal(size=WIDTH).astype(np.float32)
    return encode(verdict, crops, features, np.ones(4, np.float32), FEATURE_VERSION)
