"""Items become exemplars: crops first, then rows, in a transaction that the caller ends."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from detector.release.contract import PICTURE
from ingest.records import Decoded, MediaError
from ingest.trace_context import TraceContext
from memory.crops.crop_store import CropStore, Views
from memory.index.index import Index
from memory.index.picture_index import PictureIndex
from memory.records import Declared, Exemplar
from memory.retention import with_room
from memory.rows import NewRow, exemplars_of, groups_by_media, insert_rows, media_of
from memory.sources import blocked_among
from memory.store import ExemplarMemoryError

UnfitReason = Literal["no_message", "no_crops", "bad_features", "refused"]
"""refused: by the database."""
NEAR_DUPLICATE_DISTANCE = 0.1
"""Items closer than this share a group; root mean square over robustly scaled features."""
_DIGITS = 12


class UnfitItemError(ExemplarMemoryError, MediaError):
    """Fatal for the item: it cannot be compared or learnt. reason is an UnfitReason."""

    def __init__(self, reason: UnfitReason, message: str) -> None:
        super().__init__(reason, message)


@dataclass(frozen=True)
class Arrival:
    """An item to be remembered.

    crops is uint8 RGB (N, S, S, 3), N >= 1; features raw float32 (F,), the mean over its crops, of the
    index's version; embedding float32 (D,) or None. group is None unless the item came with one. trace is
    the place of its message in a trace.
    """

    id: str
    media_digest: str
    source: str
    crops: NDArray[np.uint8]
    features: NDArray[np.float32]
    received_at: datetime
    embedding: NDArray[np.float32] | None = None
    group: str | None = None
    release: str | None = None
    unknown_score: float | None = None
    verdict: str | None = None
    trace: TraceContext | None = None
    picture: NDArray[np.uint8] | None = None
    """(H, W, 3), the whole picture, where a release looks at it"""
    scan: bytes | None = None
    """one crop a frame of a video that a person calls real, as `memory.crops.scans` makes them"""
    picture_hashes: bytes = b""
    """as `ingest.records.Decoded` has them; none of what an older detector sent"""
    declared: Declared = field(default_factory=Declared)

    @classmethod
    def of(cls, decoded: Decoded, **fields: Any) -> Self:
        """Return the arrival of decoded media; fields are the others."""
        picture = decoded.pictures.get(PICTURE)
        first = None if picture is None else picture[0]
        return cls(crops=decoded.crops, picture=first, picture_hashes=decoded.picture_hashes, **fields)

    @property
    def views(self) -> Views:
        return Views(self.crops, self.picture, self.scan)


@dataclass(frozen=True)
class Remembered:
    """The result of some arrivals: ids of the new rows; how many were known by their id; how many
    of the new ones joined the group of an earlier item; how many were of a blocked source, and how many of a
    group that has its most."""

    new: tuple[str, ...]
    known: int
    duplicates: int
    blocked: int = 0
    alike: int = 0


def check(arrival: Arrival) -> Arrival:
    """Return an arrival that can be remembered. Raises UnfitItemError."""
    if not len(arrival.crops):
        raise UnfitItemError("no_crops", "the item has no crops")
    if not arrival.features.size or not np.isfinite(arrival.features).all():
        raise UnfitItemError("bad_features", "the item's features are not finite numbers")
    return arrival


def remember(
    connection: Connection,
    crops: CropStore,
    index: Index,
    arrivals: Sequence[Arrival],
    crops_digests: Sequence[str],
    near: float = NEAR_DUPLICATE_DISTANCE,
    most_alike: int = sys.maxsize,
) -> Remembered:
    """Write unlabelled rows on the unknown shelf, once for each id, but for those of blocked sources.

    Items closer than near, in the distance of `Index.search`, share a group. A group that has most_alike
    exemplars takes no more.

    Put the crops before the transaction begins (crops_digests): here they are only put again where
    a purge came between. At most once a transaction: the index must not see rows that may yet be
    rolled back. Raises UnfitItemError for features of another width, CropsUnavailableError.
    """
    arrivals = disambiguate_ids(connection, arrivals)
    digest_of = {a.id: digest for a, digest in zip(arrivals, crops_digests, strict=True)}
    blocked = blocked_among(connection, {a.source for a in arrivals})
    came, arrivals = len(arrivals), [a for a in arrivals if a.source not in blocked]
    left = came - len(arrivals)
    known = media_of(connection, [a.id for a in arrivals])
    new = list({a.id: a for a in arrivals if a.id not in known}.values())
    if not new:
        return Remembered((), len(arrivals), 0, left)
    index.catch_up(connection)
    features = _matrix(index, new)
    purged = crops.missing([digest_of[a.id] for a in new])
    again = [a for a in new if digest_of[a.id] in purged]
    crops.put_all([a.views for a in again])
    groups = _groups(connection, index, new, features, near)
    room = with_room(connection, groups, most_alike)
    kept = [(a, group) for a, group, fits in zip(new, groups, room, strict=True) if fits]
    alike, known_ids = len(new) - len(kept), len(arrivals) - len(new)
    if not kept:
        return Remembered((), known_ids, 0, left, alike)
    insert_rows(
        connection,
        [
            NewRow(
                exemplar=Exemplar(
                    id=a.id,
                    media_digest=a.media_digest,
                    crops_digest=digest_of[a.id],
                    source=a.source,
                    group=group,
                    shelf="unknown",
                    family=None,
                    split=None,
                    release=a.release,
                    unknown_score=a.unknown_score,
                    received_at=a.received_at,
                    **dict(a.declared),
                ),
                crop_count=len(a.crops),
                features=a.features,
                feature_version=index.feature_version,
                embedding=a.embedding,
                verdict=a.verdict,
                picture_hashes=a.picture_hashes,
            )
            for a, group in kept
        ],
    )
    joined = sum(group not in (a.id, a.group) for a, group in kept)
    return Remembered(tuple(a.id for a, _ in kept), known_ids, joined, left, alike)


def disambiguate_ids(connection: Connection, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Give each arrival whose id other media bears an id of its own.

    An id is a topic's name, a partition and an offset, and a topic that was made anew counts from 0 again.
    """
    media = media_of(connection, [a.id for a in arrivals])
    return [
        a
        if media.setdefault(a.id, a.media_digest) == a.media_digest
        else replace(a, id=f"{a.id}~{a.media_digest[:_DIGITS]}")
        for a in arrivals
    ]


def _matrix(index: Index, arrivals: Sequence[Arrival]) -> NDArray[np.float32]:
    for arrival in arrivals:
        if len(arrival.features) != index.width:
            raise UnfitItemError(
                "bad_features",
                f"{arrival.id} has {len(arrival.features)} features, not the {index.width} "
                f"of version {index.feature_version}",
            )
    return np.stack([a.features for a in arrivals])


def _groups(
    connection: Connection,
    index: Index,
    arrivals: Sequence[Arrival],
    features: NDArray[np.float32],
    near: float,
) -> list[str]:
    """Return the group of each item that is about to be written.

    In this order: the group that it came with; that of the same media bytes; that of the exemplar that shows
    the same, by its picture hashes; that of the nearest exemplar, where it is closer than near (in the
    distance of `Index.search`); its own id. It joins one group, and two that it connects stay two: what was
    trained on must not change sides. features is raw float32 (n, F). The index is brought up to the
    transaction's rows.
    """
    index.catch_up(connection, features)
    by_media = groups_by_media(connection, [arrival.media_digest for arrival in arrivals])
    alike = [index.showing(arrival.picture_hashes) for arrival in arrivals]
    nearest = [matches[0] if matches else None for matches in index.search(features, 1)]
    likes = sorted({m.id for m in nearest if m is not None and m.distance < near}.union(filter(None, alike)))
    group_of = {e.id: e.group for e in exemplars_of(connection, likes)}
    scaled = index.scale(features)
    groups: list[str] = []
    # The items of one batch are not in the index yet: they are compared among themselves.
    batch = PictureIndex()
    for i, (arrival, match) in enumerate(zip(arrivals, nearest, strict=True)):
        group = arrival.group or by_media.get(arrival.media_digest) or group_of.get(alike[i] or "")
        if group is None and (same := batch.nearest(arrival.picture_hashes)) is not None:
            group = groups[same]
        if group is None:
            among = np.linalg.norm(scaled[:i] - scaled[i], axis=1)
            likest = int(among.argmin()) if i else -1
            old = match.distance if match is not None else np.inf
            if i and among[likest] < min(near, old):
                group = groups[likest]
            elif match is not None and old < near:
                group = group_of[match.id]
            else:
                group = arrival.id
        by_media.setdefault(arrival.media_digest, group)
        batch.add([arrival.picture_hashes], [i])
        groups.append(group)
    return groups
