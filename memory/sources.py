"""What the memory knows of each source, and which are blocked: their items are scored, and nothing is kept.

Blocking is by the exact name. That is no defence against a producer, who may take another.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from memory import acts
from memory.records import BlockedEntry, Raised
from memory.rows import now_ms, rows_among, utc_time
from memory.schema import SOURCE_START, alarms, blocked, digest_of_source, exemplars
from memory.store import ExemplarMemoryError
from memory.verdict_index import count_by_source

LATELY = 20_000
"""Newest verdicts, of all sources together, that are counted."""

_ALARMS = 1000


@dataclass
class MediaSource:
    """One source, by the name that the stream has for it."""

    name: str
    shelves: dict[str, int] = field(default_factory=dict)
    """its exemplars, by shelf"""
    verdicts: Mapping[str, int] = field(default_factory=dict)
    """of the newest verdicts, those on its items, by label"""
    alarms: list[Raised] = field(default_factory=list)
    """of the newest alarms, the oldest first"""

    @property
    def items(self) -> int:
        """Verdicts lately."""
        return sum(self.verdicts.values())


def list_sources(connection: Connection) -> list[MediaSource]:
    """Return every source, those with alarms first, then those with most unknown items."""
    sources: dict[str, MediaSource] = {}

    def of(name: str) -> MediaSource:
        return sources.setdefault(name, MediaSource(name))

    for name, shelf, count in _by_shelf(connection):
        of(name).shelves[shelf] = count
    for name, counts in count_by_source(connection, LATELY).items():
        of(name).verdicts = counts
    newest = select(alarms.c.raised).order_by(alarms.c.id.desc()).limit(_ALARMS)
    for text in reversed(connection.scalars(newest).all()):
        raised = Raised.model_validate_json(text)
        of(raised.source).alarms.append(raised)
    return sorted(sources.values(), key=_most_to_see)


def is_of(name: str) -> ColumnElement[bool]:
    """Say that an exemplar is of a source, so that an index finds it."""
    return (exemplars.c.source_start == name[:SOURCE_START]) & (exemplars.c.source == name)


def _by_shelf(connection: Connection) -> Iterator[tuple[str, str, int]]:
    # From the index alone, which has the beginning of a name; those of long names are looked at one by one.
    by = exemplars.c.source_start, exemplars.c.shelf
    short = select(*by, func.count()).group_by(*by)
    long = []
    for name, shelf, count in connection.execute(short):
        if len(name) < SOURCE_START:
            yield name, shelf, count
        else:
            long.append((name, shelf))
    for start, shelf in long:
        here = (exemplars.c.source_start == start) & (exemplars.c.shelf == shelf)
        whole = select(exemplars.c.source, func.count()).where(here).group_by(exemplars.c.source)
        yield from ((name, shelf, count) for name, count in connection.execute(whole))


def _most_to_see(source: MediaSource) -> tuple[int, int, str]:
    return -len(source.alarms), -source.shelves.get("unknown", 0), source.name


class SourceBlockedError(ExemplarMemoryError):
    """Fatal for the request: the source is blocked, or is not where it should be."""


def block(connection: Connection, source: str, actor: str) -> None:
    """Block a source; once more does nothing."""
    if not blocked_among(connection, [source]):
        row = {"digest": digest_of_source(source), "source": source, "at_ms": now_ms(), "actor": actor}
        connection.execute(insert(blocked), row)
        acts.append(connection, actor, "block source", source)


def unblock(connection: Connection, source: str, actor: str) -> None:
    """Remember a source again. Raises SourceBlockedError where it is not blocked."""
    if not connection.execute(delete(blocked).where(blocked.c.digest == digest_of_source(source))).rowcount:
        raise SourceBlockedError(f"the source {source!r} is not blocked (`forgewatch memory blocked`)")
    acts.append(connection, actor, "unblock source", source)


def blocked_among(connection: Connection, sources: Iterable[str]) -> set[str]:
    digests = {digest_of_source(source): source for source in sources}
    query = select(blocked.c.digest)
    return {digests[row.digest] for row in rows_among(connection, query, blocked.c.digest, list(digests))}


def list_blocked(connection: Connection) -> list[BlockedEntry]:
    """Return every blocked source, the newest first."""
    rows = connection.execute(select(blocked).order_by(blocked.c.at_ms.desc(), blocked.c.digest))
    return [BlockedEntry(**row._mapping, at=utc_time(row.at_ms)) for row in rows]
