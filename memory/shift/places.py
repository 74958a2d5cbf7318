"""Which sources are watched: new ones, however many, push out no test that has begun to bet.

New sources are let in by the hour. What is not watched, or no longer, is counted and logged: an alert tells.
"""

from dataclasses import dataclass, field

import structlog
from sqlalchemy import ColumnElement, Connection, Table, delete, func, select

from memory import metrics
from memory.rows import now_ms
from memory.schema import digest_of_source

MAX_SOURCES = 1000
"""Sources of a release that are bet on, some 50 MB, and as many that gather."""
MAX_NEW_SOURCES = 100
"""In an hour: to fill the places of those that gather takes ten."""
MAX_RELEASES = 4
OVER_ALL = ""
"""In the place of a source: all sources of a release together."""

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_WEEK_MS = 7 * _DAY_MS

log = structlog.get_logger()


@dataclass
class Places:
    """The places in a table of watched sources, for one transaction."""

    connection: Connection
    table: Table
    now: int = field(default_factory=lambda: now_ms())
    dropped: set[tuple[str, str]] = field(default_factory=set)
    """(release, source) that are not watched, or no longer"""
    _new: int | None = None
    _let_in: dict[tuple[str, str], int] = field(default_factory=dict)
    _rooms: dict[str, bool] = field(default_factory=dict)

    def let_in(self, release: str, source: str) -> int | None:
        """Return since when a source has been new to the watch, 0 where it is not; None: it is not let in.

        One that is watched stays; one that is watched by another release is not new.
        """
        if (since := self._let_in.get((release, source))) is not None:
            return since
        since = self._since(release, source)
        if since is None:
            self.dropped.add((release, source))
        else:
            self._let_in[release, source] = since
        return since

    def _since(self, release: str, source: str) -> int | None:
        of = self.table.c
        here = of.source_digest == digest_of_source(source)
        rows = self.connection.execute(select(of.release, of.new_ms).where(here))
        known = {row.release: row.new_ms for row in rows}
        if release in known:
            return int(known[release])
        if release not in self._rooms:
            self._rooms[release] = self._has_room_for(release)
        if not self._rooms[release]:
            return None
        if known or source == OVER_ALL:
            return 0
        if self._new is None:
            self._new = self._count(of.new_ms > self.now - _HOUR_MS)
        if self._new >= MAX_NEW_SOURCES:
            return None
        self._new += 1
        return self.now

    def _has_room_for(self, release: str) -> bool:
        """Whether tests of a release are kept: those of one that nobody has heard of for a day make room."""
        of = self.table.c
        query = select(of.release, func.max(of.seen_ms).label("seen_ms")).group_by(of.release)
        seen = {row.release: row.seen_ms for row in self.connection.execute(query)}
        seen |= {other: self.now for other, room in self._rooms.items() if room}
        if release in seen or len(seen) < MAX_RELEASES:
            return True
        oldest = min(seen, key=lambda source: seen[source])
        if seen[oldest] > self.now - _DAY_MS:
            return False
        self.connection.execute(delete(self.table).where(of.release == oldest))
        return True

    def settle(self) -> None:
        """Drop the tests beyond the limits, once all is saved, and count sources that are not watched.

        Of those that gather, whoever was unseen for longest leaves. Of those that are bet on, only who was
        unseen for a week, and else the newest to the watch.
        """
        of = self.table.c
        for release in {release for release, _ in self._let_in}:
            gather = (of.release == release) & (of.number == 0)
            bet_on = (of.release == release) & (of.number > 0)
            self._drop(gather, of.seen_ms, self._count(gather) - MAX_SOURCES)
            over = self._count(bet_on) - MAX_SOURCES
            over -= self._drop(bet_on & (of.seen_ms < self.now - _WEEK_MS), of.seen_ms, over)
            self._drop(bet_on, of.new_ms.desc(), over)
        if self.dropped:
            metrics.SOURCES_DROPPED.inc(len(self.dropped))
            log.warning("sources are not watched, since too many are new", sources=len(self.dropped))

    def _drop(self, among: ColumnElement[bool], first: ColumnElement[int], most: int) -> int:
        if most <= 0:
            return 0
        of = self.table.c
        query = select(of.release, of.source_digest, of.source).where(among).order_by(first).limit(most)
        rows = self.connection.execute(query).all()
        for row in rows:
            here = (of.release == row.release) & (of.source_digest == row.source_digest)
            self.connection.execute(delete(self.table).where(here))
            self.dropped.add((row.release, row.source))
        return len(rows)

    def _count(self, which: ColumnElement[bool]) -> int:
        return self.connection.scalar(select(func.count()).select_from(self.table).where(which)) or 0
