"""Where each committed verdict lies in its topic: one is found by its item, and the newest of a release.

The thread that watches the verdicts writes the rows, in the transaction of its offsets, and forgets what the
topic's retention has deleted. The verdict itself stays in the topic alone.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, select, tuple_, update

from detector.records import Verdict, Withdrawal
from detector.release.artifact import version_of
from ingest.records import InRecord
from memory.labels import give
from memory.records import IGNORE
from memory.rows import batches, count_by
from memory.schema import MAX_SOURCE_CHARS, exemplars, verdicts

log = structlog.get_logger()

FORGOTTEN_AT_ONCE = 20_000
"""Offsets of a partition: other writers wait meanwhile."""

_ITEM = verdicts.c.item_partition, verdicts.c.item_offset
_ID = re.compile(r"(.+)-([0-9]{1,9})-([0-9]{1,18})")


@dataclass(frozen=True)
class VerdictPlace:
    """A verdict's place in the topic of verdicts, and its label."""

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
    family: str | None = None
    declared: str | None = None
    """of media that declares generation: the label by its pixels"""


SUPERSEDED = "superseded"
"""The label of a verdict of a release that was taken back, once its correction or withdrawal is read."""
WITHDRAWN = "withdrawn"
"""The label of a withdrawal."""
_TAKEN_BACK = (SUPERSEDED, WITHDRAWN)


def note_verdicts(connection: Connection, batch: Sequence[tuple[InRecord, Verdict | Withdrawal]]) -> None:
    """Write the places of verdicts and withdrawals; verdicts replaced by these or corrections are superseded.

    What is told of the same offsets, as of a topic before, is replaced.
    """
    if not batch:
        return
    offsets = defaultdict(list)
    for record, _ in batch:
        offsets[record.partition].append(record.offset)
    for partition, of in offsets.items():
        here = verdicts.c.offset.between(min(of), max(of))
        connection.execute(delete(verdicts).where(verdicts.c.partition == partition, here))
    connection.execute(insert(verdicts), [_row(record, verdict) for record, verdict in batch])
    for record, verdict in batch:
        if (taken_back := release_taken_back(verdict)) is not None:
            # It lies in the partition of the one that it replaces, later.
            before = (verdicts.c.partition == record.partition) & (verdicts.c.offset < record.offset)
            of_item = _of_item(verdict.item.partition, verdict.item.offset)
            replaced = update(verdicts).where(of_item, before, verdicts.c.release == version_of(taken_back))
            connection.execute(replaced.values(label=SUPERSEDED))


def _row(record: InRecord, verdict: Verdict | Withdrawal) -> dict[str, str | int | None]:
    item, label, family, declared = verdict.item, WITHDRAWN, None, None
    if isinstance(verdict, Verdict):
        label = verdict.label
        family = verdict.family if label == "fake" else None
        declared = verdict.by_pixels if verdict.provenance.generation else None
    place = {"partition": record.partition, "offset": record.offset, "at_ms": record.timestamp_ms}
    of_item = {"item_partition": item.partition, "item_offset": item.offset}
    answer = {"release": version_of(verdict.release), "label": label, "family": family, "declared": declared}
    return {**place, **of_item, **answer, "source": item.source[:MAX_SOURCE_CHARS]}


def release_taken_back(verdict: Verdict | Withdrawal) -> str | None:
    """Return the digest of the release whose verdict a correction or withdrawal replaces, or None."""
    return verdict.supersedes if isinstance(verdict, Verdict) else verdict.release


def find_verdict(connection: Connection, id_: str, media_topic: str) -> VerdictPlace | None:
    """Return where the newest verdict of an id (topic-partition-offset of the item) lies; None: none does."""
    item = item_of(id_)
    if item is None or id_.rpartition("-")[0].rpartition("-")[0] != media_topic:
        return None
    query = select(verdicts).where(_of_item(*item), verdicts.c.label != SUPERSEDED)
    return next(iter(_places(connection, query, 1)), None)


def find_superseded(connection: Connection, place: VerdictPlace) -> list[VerdictPlace]:
    """Return the verdicts that a correction or a withdrawal replaced, the newest first."""
    of_item = _of_item(place.item_partition, place.item_offset)
    return _places(connection, select(verdicts).where(of_item, verdicts.c.label == SUPERSEDED), 10)


def corrected_among(connection: Connection, places: Sequence[VerdictPlace]) -> set[tuple[int, int]]:
    """Return the items, as (partition, offset), of which another verdict was superseded."""
    items = [(place.item_partition, place.item_offset) for place in places]
    superseded = tuple_(*_ITEM).in_(items) & (verdicts.c.label == SUPERSEDED)
    return {(partition, offset) for partition, offset in connection.execute(select(*_ITEM).where(superseded))}


def item_of(id_: str) -> tuple[int, int] | None:
    """Return the partition and the offset of the item that an id names; None where it is no such id."""
    item = _ID.fullmatch(id_)
    return None if item is None else (int(item[2]), int(item[3]))


def item_id(place: VerdictPlace, media_topic: str) -> str:
    return f"{media_topic}-{place.item_partition}-{place.item_offset}"


def newest_verdicts(connection: Connection, most: int, release: str | None = None) -> list[VerdictPlace]:
    """Return the newest verdicts, of a release by its digest, or of all; the newest first."""
    query = select(verdicts).where(verdicts.c.label != SUPERSEDED)
    if release is not None:
        query = query.where(verdicts.c.release == version_of(release))
    return _places(connection, query, most)


def search_verdicts(
    connection: Connection,
    most: int,
    *,
    source: str = "",
    label: str = "",
    family: str = "",
    since_ms: int = 0,
    until_ms: int = 2**62,
    skip: int = 0,
) -> list[VerdictPlace]:
    """Return the newest verdicts of sources that contain a text, of a label and a family; empty: of any.

    since_ms, until_ms: when they were written, milliseconds since 1970, both ends among them.
    """
    written = verdicts.c.at_ms.between(since_ms, until_ms) & (verdicts.c.label != SUPERSEDED)
    query = select(verdicts).where(written, verdicts.c.source.contains(source, autoescape=True))
    for column, wanted in ((verdicts.c.label, label), (verdicts.c.family, family)):
        query = query.where(column == wanted) if wanted else query
    return _places(connection, query.offset(skip), most)


def count_by_source(connection: Connection, of_newest: int) -> dict[str, dict[str, int]]:
    """Return how many of the newest verdicts are of each source, by their label."""
    newest = select(verdicts.c.source, verdicts.c.label).where(verdicts.c.label.not_in(_TAKEN_BACK))
    some = newest.order_by(verdicts.c.at_ms.desc()).limit(of_newest).subquery()
    query = select(some.c.source, some.c.label, func.count()).group_by(some.c.source, some.c.label)
    counts = defaultdict[str, dict[str, int]](dict)
    for source, label, count in connection.execute(query):
        counts[source][label] = count
    return dict(counts)


def count_over_time(
    connection: Connection, until_ms: int, spans_ms: Sequence[int], parts: int
) -> tuple[int, list[dict[str, int]]]:
    """Return when a span begins, and how many verdicts of each label every part of it has, the oldest first.

    The span, in milliseconds, is the shortest that has all verdicts of the longest.
    """
    longest = verdicts.c.at_ms.between(until_ms - spans_ms[-1], until_ms)
    first = connection.scalar(select(func.min(verdicts.c.at_ms)).where(longest))
    spans = (span_ms for span_ms in spans_ms if until_ms - span_ms <= (first or 0))
    since = until_ms - next(spans, spans_ms[-1])
    width = -(-(until_ms - since) // parts)
    part = ((verdicts.c.at_ms - since) // width).label("part")
    within = verdicts.c.at_ms.between(since, until_ms) & verdicts.c.label.not_in(_TAKEN_BACK)
    some = select(part, verdicts.c.label).where(within).subquery()
    query = select(some.c.part, some.c.label, func.count()).group_by(some.c.part, some.c.label)
    counts: list[dict[str, int]] = [{} for _ in range(parts)]
    for place, label, count in connection.execute(query):
        counts[min(int(place), parts - 1)][label] = count
    return since, counts


def count_verdicts(connection: Connection, release: str) -> Mapping[str, int]:
    """Return how many verdicts of a release, by its digest, the topic has, by their label.

    Those that were taken back are counted as superseded, unless they were the same.
    """
    of_release = (verdicts.c.release == version_of(release)) & (verdicts.c.label != WITHDRAWN)
    return count_by(connection, verdicts.c.label, of_release)


def count_declared(connection: Connection, release: str, since_ms: int) -> dict[str, int]:
    """Return how many verdicts of a release are of media that declares generation, by their pixels' label.

    They go back to a time, milliseconds since 1970, and as far as the topic's retention keeps them.
    """
    of_release = (verdicts.c.release == version_of(release)) & (verdicts.c.at_ms >= since_ms)
    mine = of_release & verdicts.c.declared.is_not(None) & verdicts.c.label.not_in(_TAKEN_BACK)
    return count_by(connection, verdicts.c.declared, mine)


def forget_before(connection: Connection, partition: int, offset: int) -> int:
    """Forget some verdicts of a partition that lie before an offset, the oldest first; return how many."""
    mine = verdicts.c.partition == partition
    first = connection.scalar(select(func.min(verdicts.c.offset)).where(mine))
    if first is None or first >= offset:
        return 0
    before = min(offset, first + FORGOTTEN_AT_ONCE)
    return connection.execute(delete(verdicts).where(mine, verdicts.c.offset < before)).rowcount


def _of_item(partition: int, offset: int) -> ColumnElement[bool]:
    return (verdicts.c.item_partition == partition) & (verdicts.c.item_offset == offset)


def _places(connection: Connection, query: Select[tuple[object, ...]], most: int) -> list[VerdictPlace]:
    rows = connection.execute(query.order_by(verdicts.c.at_ms.desc()).limit(most))
    return [VerdictPlace(**row._mapping) for row in rows]


ACTOR = "retraction"
"""Who ignores them; an undo of the label brings them back."""


def ignore_retracted(connection: Connection, ids: Sequence[str]) -> int:
    """Ignore those of these exemplars that wait, and whose verdict is superseded by none that says unknown.

    In the caller's transaction (`Store.write`), whichever of the exemplar and the correction came first.
    Returns how many.
    """
    unlabelled = [id_ for some in batches(ids) for id_ in _unlabelled_of(connection, some)]
    if unlabelled:
        number = give(connection, unlabelled, IGNORE, ACTOR, "refuse")
        log.info("unknowns whose verdicts were taken back are ignored", items=len(unlabelled), label=number)
    return len(unlabelled)


def _unlabelled_of(connection: Connection, ids: Sequence[str]) -> list[str]:
    waits = (exemplars.c.shelf == "unknown") & exemplars.c.crops_digest.is_not(None)
    rows = connection.execute(
        select(exemplars.c.id, exemplars.c.release).where(exemplars.c.id.in_(ids), waits)
    )
    said_by = {row.id: version_of(row.release) for row in rows if row.release is not None}
    items = {item: id_ for id_ in said_by if (item := item_of(id_)) is not None}
    if not items:
        return []
    of_items = select(verdicts).where(tuple_(*_ITEM).in_(list(items)))
    query = of_items.order_by(verdicts.c.at_ms, verdicts.c.offset)
    superseded, newest = set[str](), dict[str, str]()
    for row in connection.execute(query):
        id_ = items[row.item_partition, row.item_offset]
        if row.label != SUPERSEDED:
            # Declared media is fake for its declaration, and waits for the label by its pixels.
            newest[id_] = "unknown" if row.declared in ("real", "unknown") else row.label
        elif row.release == said_by[id_]:
            superseded.add(id_)
    return [id_ for id_ in said_by if id_ in superseded and newest.get(id_, "unknown") != "unknown"]
