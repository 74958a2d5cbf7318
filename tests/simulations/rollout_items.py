"""Shared items of simulated rollouts: what both releases say, in scenes of alike items, by source."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.rollouts.checks import Shared
from detector.records import Comparison

FAMILIES = tuple(f"family {number}" for number in range(1, 9))
"""What the champion knows: of all items 4 % are surely of the first, and 2 % of each other one."""

_REAL, _UNKNOWN, _SURE = 0.79, 0.03, (0.04, *[0.02] * 7)
_SLOW, _ERROR = 0.07, 0.0005
"""How many items one release alone is slow at, and cannot score, of both releases alike."""

_LARGEST = 1.25
"""The first source sends so many times what each other one does."""


@dataclass(frozen=True)
class Stream:
    """Items a second of all sources, sources with a history, items of a scene that are alike, new names."""

    items_per_s: float = 10.0
    sources: int = 1
    burst: int = 1
    names: int = 0

    def scenes(self, seconds: float) -> NDArray[np.float64]:
        """How many scenes each source sends in so many seconds, on average; then each new name."""
        weights = np.ones(self.sources + self.names)
        weights[0] = _LARGEST
        return np.asarray(self.items_per_s * seconds / self.burst * weights / weights.sum())


@dataclass(frozen=True)
class Challenger:
    """Shares of what the champion says that the challenger says otherwise."""

    name: str
    reals_lost: float = 0.01
    """half of the first 1 % turn unknown, and as many unknowns turn real; all others turn a known fake"""
    families_lost: float = 0.0
    """turn real, of what the champion is sure of"""
    first_lost: float = 0.0
    """of the first family"""

    def kinds(self) -> list[tuple[Shared, float]]:
        """An item of each kind, and how many of all items are of it."""
        unknown = min(self.reals_lost, 0.01) / 2
        back = _REAL * unknown
        kinds = [
            (_item("real", "unknown"), _REAL * unknown),
            (_item("real", FAMILIES[0]), _REAL * (self.reals_lost - unknown)),
            (_item("unknown", "real"), back),
            (_item("unknown", "unknown"), _UNKNOWN - back),
            (_item("real", "real", challenger_s=0.3), _SLOW),
            (_item("real", "real", champion_s=0.3), _SLOW),
            (_item("real", "error"), _ERROR),
            (_item("error", "real"), _ERROR),
        ]
        for family, share in zip(FAMILIES, _SURE, strict=True):
            lost = self.first_lost if family == FAMILIES[0] else self.families_lost
            kinds += [(_item(family, "real"), share * lost), (_item(family, family), share * (1 - lost))]
        rest = 1 - sum(share for _, share in kinds)
        return [*kinds, (_item("real", "real"), rest)]


def _item(champion: str, challenger: str, champion_s: float = 0.1, challenger_s: float = 0.1) -> Shared:
    said = [_said(champion, champion_s), _said(challenger, challenger_s)]
    comparison = Comparison.model_validate(
        {
            "id": "media-0-0",
            "source": "",
            "digest": "",
            "champion": {"release": "a" * 64, **said[0]},
            "challenger": {"release": "b" * 64, **said[1]},
            "answered": "champion",
        }
    )
    return Shared(comparison, new=frozenset())


def _said(what: str, model_s: float) -> dict[str, Any]:
    if what == "error":
        return {"error": "it cannot be scored"}
    if what in ("real", "unknown"):
        return {"label": what, "fake_probability": 0.1, "model_s": model_s}
    return {"label": "fake", "family": what, "fake_probability": 0.95, "model_s": model_s}
