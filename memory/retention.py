"""Retention of the crop store, and the shares of the shelves for a look-alike group and a source.

Unlabelled and ignored items leave past their time, and files to which no row points. Producers choose both
the group and the source, so both are bounded.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select

from memory.crops.crop_store import SHARDS, CropStore
from memory.crops.object_store import AT_ONCE
from memory.rows import batches, count_by, crops_in_use, drop, now_ms
from memory.schema import exemplars
from memory.store import Store

MOST_ALIKE = 20
"""Exemplars of one group: more than make a cluster, and one is a witness like the next."""

MOST_WAITING = 10_000
"""Exemplars of one source that wait for a person, the newest: of nine crops each, 4 GB."""
MOST_MISSED = 500
"""Of these, missed ones that declare generation: a sample by a hash of the id."""


def with_room(connection: Connection, groups: Sequence[str], most: int) -> list[bool]:
    """Say of each new exemplar's group, in turn, whether it has fewer than `most` that were not dropped."""
    held = Counter[str]()
    for some in batches(sorted(set(groups))):
        live = exemplars.c.group.in_(some) & (exemplars.c.shelf != "dropped")
        held.update(count_by(connection, exemplars.c.group, live))
    room = []
    for group in groups:
        room.append(held[group] < most)
        held[group] += room[-1]
    return room


def beyond_sources(connection: Connection, most: int) -> list[str]:
    """Return the ids of waiting items beyond the newest `most` of their source, or its MOST_MISSED."""
    waiting = exemplars.c.shelf == "unknown"
    missed = waiting & exemplars.c.declares.is_not(None) & exemplars.c.missed
    of_source = select(exemplars.c.source).group_by(exemplars.c.source)
    beyond: list[str] = []
    for source in connection.scalars(of_source.where(waiting).having(func.count() > most)).all():
        newest = (exemplars.c.received_ms.desc(), exemplars.c.id.desc())
        mine = select(exemplars.c.id).where(waiting, exemplars.c.source == source)
        beyond += connection.scalars(mine.order_by(*newest).offset(most)).all()
    for source in connection.scalars(of_source.where(missed).having(func.count() > MOST_MISSED)).all():
        ids = connection.scalars(select(exemplars.c.id).where(missed, exemplars.c.source == source))
        beyond += sorted(ids, key=lambda id_: hashlib.sha256(id_.encode()).digest())[MOST_MISSED:]
    return list(dict.fromkeys(beyond))


MAX_PURGED_SHARE = 0.01
"""Of the items that can be purged, so many at most in one round, the oldest first: a wrong clock that
the newest items share costs no more, and a month's items still leave within hours of their time."""

_DAY_MS = 24 * 3600 * 1000
_DELETED_AT_ONCE = AT_ONCE
"""One round of requests: the database may end a transaction that lasts for two (memory.postgresql)."""


@dataclass
class Retention:
    """Purges unlabelled and ignored items after some days; a labelled item's crops stay for ever.

    Items age against the newest of them and against the time that this process itself has seen pass
    since, not against the wall clock alone: a clock that jumps ahead makes nothing old. So the last
    items of a quiet memory wait for a newer one, or for a process that lives as long as they may.
    """

    days: float
    wall_ms: Callable[[], int] = now_ms
    monotonic_s: Callable[[], float] = time.monotonic
    _newest_ms: int | None = None
    _seen_at_s: float = 0.0

    def purge(self, store: Store, crops: CropStore) -> int:
        """Drop expired items, within this round's share; return how many.

        Their crops are gone from the crop store on return. Raises StoreUnavailableError or
        CropsUnavailableError.
        """
        with store.read() as connection:
            before = self._present_ms(connection) - round(self.days * _DAY_MS)
            ids = _expired_ids(connection, before)
        if not ids:
            return 0
        with store.write() as connection:
            # A person may have labelled some of them since they were read: those stay.
            still = set(connection.scalars(select(exemplars.c.id).where(_can_be_purged())))
            dropped = [i for i in ids if i in still]
            digests = drop(connection, dropped)
        # Rows first: a crash in between leaves crops without a row, which `sweep` finds, and never a
        # row without its crops.
        delete_unused(store, crops, digests)
        return len(dropped)

    def _present_ms(self, connection: Connection) -> int:
        wall = self.wall_ms()
        # An item from the future was stamped by a clock that was wrong then.
        newest: int | None = connection.scalar(
            select(func.max(exemplars.c.received_ms)).where(exemplars.c.received_ms <= wall)
        )
        if newest is None:
            return wall
        if newest != self._newest_ms:
            self._newest_ms, self._seen_at_s = newest, self.monotonic_s()
        return min(wall, newest + round(1000 * (self.monotonic_s() - self._seen_at_s)))


def purge_sources(store: Store, crops: CropStore, most: int = MOST_WAITING) -> int:
    """Drop waiting items beyond the newest `most` of their source; return how many.

    Raises StoreUnavailableError or CropsUnavailableError.
    """
    with store.read() as connection:
        if not beyond_sources(connection, most):
            return 0
    with store.write() as connection:
        dropped = beyond_sources(connection, most)
        digests = drop(connection, dropped)
    delete_unused(store, crops, digests)
    return len(dropped)


def sweep(store: Store, crops: CropStore, shards: Iterable[str] = SHARDS) -> int:
    """Delete crops that no row points to: a crash between a crop and its row leaves them. Return how many.

    shards are those of the crop store that are looked through. Raises StoreUnavailableError or
    CropsUnavailableError.
    """
    stored = list(crops.digests(shards))
    with store.read() as connection:
        orphans = set(stored) - crops_in_use(connection, stored)
    return delete_unused(store, crops, orphans) if orphans else 0


def _can_be_purged() -> ColumnElement[bool]:
    return exemplars.c.shelf.in_(("unknown", "ignored"))


def _expired_ids(connection: Connection, before_ms: int) -> Sequence[str]:
    count = connection.scalar(select(func.count()).where(_can_be_purged())) or 0
    most = max(1, int(MAX_PURGED_SHARE * count))
    old = select(exemplars.c.id).where(_can_be_purged(), exemplars.c.received_ms < before_ms)
    return connection.scalars(old.order_by(exemplars.c.received_ms, exemplars.c.id).limit(most)).all()


def delete_unused(store: Store, crops: CropStore, digests: set[str]) -> int:
    """Delete those crops that no row points to; return how many. Raises as `sweep`."""
    # Inside the writers' queue, where no one can be about to point to them: `remember` looks for
    # its crops again in its own transaction. Some at a time, since every other writer waits meanwhile.
    left, deleted = sorted(digests), 0
    while left:
        some, left = left[:_DELETED_AT_ONCE], left[_DELETED_AT_ONCE:]
        with store.write() as connection:
            unused = set(some) - crops_in_use(connection, some)
            crops.delete_all(unused)
        deleted += len(unused)
    return deleted
