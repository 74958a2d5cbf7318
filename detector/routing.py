"""Which release scores an item: the canary takes a share of them, chosen by the item's id. Pure."""

import hashlib
from dataclasses import dataclass

from detector.release.artifact import Artifact

_PLACES = 2**64


@dataclass(frozen=True)
class Route:
    """The releases that score now: the canary takes canary_share of the items, the stable one the rest."""

    stable: Artifact
    canary: Artifact | None = None
    canary_share: float = 0.0

    def pick(self, item_id: str) -> Artifact:
        """The release that scores the item of this id (a verdict's `id`)."""
        if self.canary is not None and in_share(item_id, self.canary_share):
            return self.canary
        return self.stable

    @property
    def releases(self) -> dict[str, Artifact]:
        """What this route may pick, by digest."""
        both = (self.stable,) if self.canary is None else (self.stable, self.canary)
        return {artifact.digest: artifact for artifact in both}


def in_share(item_id: str, share: float) -> bool:
    """Whether an id belongs to a share of all ids, in [0, 1].

    SHA-256 places each id evenly and for good, so a larger share holds all of a smaller one's. The id is
    topic, partition and offset: the broker gives it, so that no producer can choose who scores its media.
    """
    place = int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:8])
    return place < share * _PLACES
