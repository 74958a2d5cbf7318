"""Exemplars of items that never were, and their arrivals at the memory."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from memory.intake import Arrival
from memory.records import Exemplar


def make_exemplar(number: int, **changes: Any) -> Exemplar:
    """An unlabelled exemplar, unless said otherwise."""
    usual: dict[str, Any] = {
        "id": f"media-0-{number}",
        "media_digest": f"{number:064x}",
        "crops_digest": f"{number:064x}",
        "source": "camera",
        "group": f"media-0-{number}",
        "shelf": "unknown",
        "release": None,
        "unknown_score": 4.2,
        "received_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return Exemplar(**(dict.fromkeys(("family", "split")) | usual | changes))


def make_arrival(number: int, width: int, **changes: Any) -> Arrival:
    """The same number always makes the same item, features float32 [width]; others make quite other ones."""
    rng = np.random.default_rng(number)
    usual: dict[str, Any] = {
        "id": f"media-0-{number}",
        "media_digest": f"{number:064x}",
        "source": "camera",
        "crops": rng.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8),
        "features": rng.normal(size=width).astype(np.float32),
        "unknown_score": 1.0,
        "received_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return Arrival(**(dict.fromkeys(("embedding", "group", "release", "verdict")) | usual | changes))
