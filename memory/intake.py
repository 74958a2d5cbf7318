"""Items become exemplars: crops first, then rows, in a transaction that the caller ends.

And exemplars of an older feature version get the features of today's, computed anew from their stored crops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Event
from typing import Literal

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from ingest.records import MediaError
from ingest.trace_context import TraceContext
from memory.blocked import blocked_among
from memory.crops.crop_store import CropsDamagedError, CropsMissingError, CropStore, Views
from memory.features import FEATURE_VERSION, features_of
from memory.index.index import Index
from memory.index.picture_index import PictureIndex
from memory.records import Exemplar
from memory.rows import (
    NewRow,
    exemplars_of,
    feature_versions,
    groups_by_media,
    insert_rows,
    media_of,
    renew_features,
)
from memory.schema import exemplars
from memory.store import ExemplarMemoryError, Store

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
    embedding: NDArray[np.float32] | None
    group: str | None
    release: str | None
    unknown_score: float | None
    received_at: datetime
    verdict: str | None
    trace: TraceContext | None = None
    picture: NDArray[np.uint8] | None = None
    """(H, W, 3), the whole picture, where a release looks at it"""
    scan: bytes | None = None
    """one crop a frame of a video that a person calls real, as `memory.crops.scans` makes them"""
    picture_hashes: bytes = b""
    """as `ingest.records.Decoded` has them; none of what an older detector sent"""

    @property
    def views(self) -> Views:
        """What is stored of it beside its row."""
        return Views(self.crops, self.picture, self.scan)


@dataclass(frozen=True)
class Remembered:
    """What became of some arrivals: ids of the new rows; how many were known by their id; how many
    of the new ones joined the group of an earlier item; how many were of a blocked source."""

    new: tuple[str, ...]
    known: int
    duplicates: int
    blocked: int = 0


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
) -> Remembered:
    """Write unlabelled rows on the unknown shelf, once for each id, but for those of blocked sources.

    Items closer than near, in the distance of `Index.search`, share a group.

    Put the crops before the transaction begins (crops_digests): here they are only put again where
    a purge came between. At most once a transaction: the index must not see rows that may yet be
    rolled back. Raises UnfitItemError for features of another width, CropsUnavailableError.
    """
    arrivals = _told_apart(connection, arrivals)
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
                ),
                crop_count=len(a.crops),
                features=a.features,
                feature_version=index.feature_version,
                embedding=a.embedding,
                verdict=a.verdict,
                picture_hashes=a.picture_hashes,
            )
            for a, group in zip(new, groups, strict=True)
        ],
    )
    joined = sum(group not in (a.id, a.group) for a, group in zip(new, groups, strict=True))
    return Remembered(tuple(a.id for a in new), len(arrivals) - len(new), joined, left)


def _told_apart(connection: Connection, arrivals: Sequence[Arrival]) -> list[Arrival]:
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
    shown = [index.showing(arrival.picture_hashes) for arrival in arrivals]
    nearest = [matches[0] if matches else None for matches in index.search(features, 1)]
    likes = sorted({m.id for m in nearest if m is not None and m.distance < near}.union(filter(None, shown)))
    group_of = {e.id: e.group for e in exemplars_of(connection, likes)}
    scaled = index.scaled(features)
    groups: list[str] = []
    # The items of one batch are not in the index yet: they are compared among themselves.
    batch = PictureIndex()
    for i, (arrival, match) in enumerate(zip(arrivals, nearest, strict=True)):
        group = arrival.group or by_media.get(arrival.media_digest) or group_of.get(shown[i] or "")
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


_BATCH_ITEMS = 32
log = structlog.get_logger()


@dataclass(frozen=True)
class Reextracted:
    """How many exemplars got features of today's version, and how many keep those of an older one: their
    crops were purged, are damaged, or are too small."""

    renewed: int
    left_behind: int


def reextract(store: Store, crops: CropStore, stop: Event, beat: Callable[[str], None]) -> Reextracted:
    """Compute the features of every exemplar that is not of FEATURE_VERSION, a batch a transaction.

    They become the mean over the stored crops. beat is called before each batch. Ends early, between two
    batches, once stop is set; each row says its version, so the next call goes on from there. Rows that are
    left behind are in no index and, for want of crops, never trained on; the log counts them. Raises
    StoreUnavailableError or CropsUnavailableError.
    """
    waiting = _waiting(store)
    renewed = 0
    for start in range(0, len(waiting), _BATCH_ITEMS):
        if stop.is_set():
            break
        beat("features are computed anew")
        computed = _computed(crops, waiting[start : start + _BATCH_ITEMS])
        if computed:
            with store.write() as connection:
                renewed += renew_features(connection, computed, FEATURE_VERSION)
        done = min(start + _BATCH_ITEMS, len(waiting))
        log.info("features computed anew", version=FEATURE_VERSION, done=done, of=len(waiting))
    with store.read() as connection:
        versions = feature_versions(connection)
    left_behind = sum(count for version, count in versions.items() if version != FEATURE_VERSION)
    if left_behind:
        log.warning("exemplars of an older feature version are left out", exemplars=left_behind)
    return Reextracted(renewed, left_behind)


def _waiting(store: Store) -> list[tuple[str, str]]:
    """Return the ids of older exemplars with the digest of their crops, in the order of writing."""
    query = select(exemplars.c.id, exemplars.c.crops_digest).where(
        exemplars.c.feature_version != FEATURE_VERSION, exemplars.c.crops_digest.is_not(None)
    )
    with store.read() as connection:
        rows = connection.execute(query.order_by(exemplars.c.revision, exemplars.c.id))
        return [(row.id, row.crops_digest) for row in rows]


def _computed(crops: CropStore, items: Sequence[tuple[str, str]]) -> dict[str, NDArray[np.float32]]:
    """Return the features of those items whose crops can be read, by id."""
    found = {}
    for item, digest in items:
        try:
            found[item] = features_of(crops.load(digest))
        except (CropsMissingError, CropsDamagedError, ValueError) as error:
            log.error("features cannot be computed anew", exemplar=item, error=str(error))
    return found
