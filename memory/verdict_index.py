"""Where each committed verdict lies in its topic: one is found by its item, and the newest of a release.

The thread that watches the verdicts writes the rows, in the transaction of its offsets, and forgets what the
topic's retention has deleted. The verdict itself stays in the topic alone.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, delete, func, insert, select

from detector.records import Verdict
from detector.release.artifact import version_of
from ingest.records import InRecord
from memory.schema import verdicts

FORGOTTEN_AT_ONCE = 20_000
"""Offsets of a partition: other writers wait meanwhile."""

_ID = re.compile(r"(.+)-([0-9]{1,9})-([0-9]{1,18})")
_MAX_SOURCE_CHARS = 1000


@dataclass(frozen=True)
class VerdictPlace:
    """Where a verdict lies in the topic of verdicts, and what it says in short."""

    partition: int
    offset: int
    item_partition: int
    """with item_offset: where its item lay in the media topic"""
    item_offset: int
    release: str
    """the short name"""
    at_ms: int
    """when it was written, milliseconds since the epoch"""
    label: str
    source: str


def note_verdicts(connection: Connection, found: Sequence[tuple[InRecord, Verdict]]) -> None:
    """Write where verdicts lie. What is told of the same offsets, as of a topic before, is replaced."""
    if not found:
        return
    offsets = defaultdict(list)
    for record, _ in found:
        offsets[record.partition].append(record.offset)
    for partition, of in offsets.items():
        here = verdicts.c.offset.between(min(of), max(of))
        connection.execute(delete(verdicts).where(verdicts.c.partition == partition, here))
    connection.execute(
        insert(verdicts),
        [
            {
                "partition": record.partition,
                "offset": record.offset,
                "item_partition": verdict.item.partition,
                "item_offset": verdict.item.offset,
                "release": version_of(verdict.release),
                "at_ms": record.timestamp_ms,
                "label": verdict.label,
                "source": verdict.item.source[:_MAX_SOURCE_CHARS],
            }
            for record, verdict in found
        ],
    )


def find_verdict(connection: Connection, id_: str, media_topic: str) -> VerdictPlace | None:
    """Return where the newest verdict of an id (topic-partition-offset of the item) lies; None: none does."""
    item = _ID.fullmatch(id_)
    if item is None or item[1] != media_topic:
        return None
    here = (verdicts.c.item_partition == int(item[2])) & (verdicts.c.item_offset == int(item[3]))
    return next(iter(_places(connection, select(verdicts).where(here), 1)), None)


def item_id(place: VerdictPlace, media_topic: str) -> str:
    """Return the id of the item that a verdict is on, and of the verdict."""
    return f"{media_topic}-{place.item_partition}-{place.item_offset}"


def newest_verdicts(connection: Connection, most: int, release: str | None = None) -> list[VerdictPlace]:
    """Return the newest verdicts, of a release by its digest, or of all; the newest first."""
    query = select(verdicts)
    if release is not None:
        query = query.where(verdicts.c.release == version_of(release))
    return _places(connection, query, most)


def count_by_source(connection: Connection, of_newest: int) -> dict[str, dict[str, int]]:
    """Return how many of the newest verdicts are of each source, by their label."""
    newest = select(verdicts.c.source, verdicts.c.label).order_by(verdicts.c.at_ms.desc()).limit(of_newest)
    some = newest.subquery()
    query = select(some.c.source, some.c.label, func.count()).group_by(some.c.source, some.c.label)
    counts = defaultdict[str, dict[str, int]](dict)
    for source, label, count in connection.execute(query):
        counts[source][label] = count
    return dict(counts)


def count_verdicts(connection: Connection, release: str) -> Mapping[str, int]:
    """Return how many verdicts of a release, by its digest, the topic has, by their label."""
    of_release = verdicts.c.release == version_of(release)
    query = select(verdicts.c.label, func.count()).where(of_release).group_by(verdicts.c.label)
    return {row[0]: row[1] for row in connection.execute(query)}


def forget_before(connection: Connection, partition: int, offset: int) -> int:
    """Forget some verdicts of a partition that lie before an offset, the oldest first; return how many."""
    mine = verdicts.c.partition == partition
    first = connection.scalar(select(func.min(verdicts.c.offset)).where(mine))
    if first is None or first >= offset:
        return 0
    before = min(offset, first + FORGOTTEN_AT_ONCE)
    return connection.execute(delete(verdicts).where(mine, verdicts.c.offset < before)).rowcount


def _places(connection: Connection, query: Select[tuple[object, ...]], most: int) -> list[VerdictPlace]:
    rows = connection.execute(query.order_by(verdicts.c.at_ms.desc()).limit(most))
    return [VerdictPlace(**row._mapping) for row in rows]
