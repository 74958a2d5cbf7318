"""Verdicts of items that never were, and the messages of the unknown ones."""

from typing import Any

import numpy as np

from detector.records import Timings, Verdict
from detector.unknowns import encode
from detector.verdicts import Evidence
from ingest.records import Decoded, MediaItem
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


def make_evidence() -> Evidence:
    """What the label of a black picture was said of."""
    decoded = Decoded("image", "PNG", 32, 32, 1, np.zeros((1, 32, 32, 3), np.uint8), ())
    return Evidence(decoded, np.zeros(WIDTH, np.float32), np.zeros(4, np.float32))


def unknown_message(offset: int, content: int | None = None) -> bytes:
    """The unknown item of the media at this offset; the same content has the same digest and crops."""
    number = offset if content is None else content
    rng = np.random.default_rng(number)
    verdict = make_verdict(make_item(offset, digest=f"{number:064x}"))
    crops = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    features = rng.normal(size=WIDTH).astype(np.float32)
    return encode(verdict, crops, features, np.ones(4, np.float32), FEATURE_VERSION)
