"""Verdicts of any label are watched for drift, by source and over all: rows in and out of a transaction."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, Select, insert, select, update

from detector.records import Verdict
from memory import acts
from memory.records import Drift, DriftAlarm
from memory.rows import now_ms
from memory.schema import digest_of_source, drift_alarms, drift_watched, watched_releases
from memory.settings import MemorySettings
from memory.shift.alarms import MAX_REFERENCE, next_number
from memory.shift.drift_test import DriftTest
from memory.shift.places import OVER_ALL, Places
from memory.shift.shift_test import share_of_budget

DRIFT = "drift"
"""What the record calls an alarm of drift."""

log = structlog.get_logger()


@dataclass
class DriftState:
    """A source and its test. number is the test's among its release's of drift that have bet; 0 before."""

    release: str
    source: str
    number: int
    test: DriftTest


def watch_drift(
    connection: Connection, verdicts: Iterable[tuple[str, Verdict]], settings: MemorySettings
) -> Sequence[Drift]:
    """Bet on a batch of verdicts, each with its source, in their order; return the drifts, on record."""
    open_: dict[tuple[str, str], DriftState] = {}
    drifts, places = [], Places(connection, drift_watched)
    for source, verdict in verdicts:
        for name in (source, OVER_ALL):
            key = verdict.release, name
            if places.let_in(*key) is None:
                continue
            entry = open_.get(key) or load(connection, *key, settings)
            open_[key] = entry
            entry.test.observe(verdict)
            if entry.test.bets == 0:
                continue
            entry.number = entry.number or next_number(
                connection, verdict.release, watched_releases.c.drift_tests
            )
            if (drift := drift_if_crossed(entry, settings.max_false_alarms)) is not None:
                drifts.append(drift)
                connection.execute(
                    insert(drift_alarms).values(found=drift.model_dump_json(), announced=False)
                )
                about = drift.source or "all sources"
                acts.append(connection, acts.MEMORY, DRIFT, about, drift.model_dump(mode="json"))
                log.warning("verdicts have drifted", **drift.model_dump(exclude={"at"}))
                open_[key] = begin(*key, settings)
    for key, entry in open_.items():
        save(connection, entry, places.let_in(*key) or 0)
    places.settle()
    return drifts


def load(connection: Connection, release: str, source: str, settings: MemorySettings) -> DriftState:
    """Return a watched source, with a test that begins where it was not watched by tests of today's form."""
    here = _here(release, source)
    row = connection.execute(select(drift_watched).where(here)).first()
    test = None if row is None else DriftTest.from_bytes(row.test)
    if row is None or test is None:
        return begin(release, source, settings)
    return DriftState(release, source, row.number, test)


def begin(release: str, source: str, settings: MemorySettings) -> DriftState:
    """Begin a source's test, which gathers first."""
    seeds = secrets.randbits(62), secrets.randbits(62), secrets.randbits(62)
    return DriftState(release, source, 0, DriftTest.begin(seeds, settings.min_reference, MAX_REFERENCE))


def save(connection: Connection, entry: DriftState, new_ms: int = 0) -> None:
    """Write a watched source, new to the watch since then where it is one more."""
    here = _here(entry.release, entry.source)
    values = {"number": entry.number, "test": entry.test.to_bytes(), "seen_ms": now_ms()}
    if not connection.execute(update(drift_watched).where(here).values(values)).rowcount:
        values |= {"release": entry.release, "source": entry.source, "new_ms": new_ms}
        connection.execute(insert(drift_watched).values(values))


def _here(release: str, source: str) -> ColumnElement[bool]:
    digest = digest_of_source(source)
    return (drift_watched.c.release == release) & (drift_watched.c.source_digest == digest)


def drift_if_crossed(entry: DriftState, budget: float) -> Drift | None:
    """Return the alarm where the evidence has reached its limit.

    The n-th test of drift has the share of the 2n-th of all of its release's tests; those of shift have the
    odd ones.
    """
    finding = entry.test.strongest_finding(budget * share_of_budget(2 * entry.number))
    if finding is None:
        return None
    source = None if entry.source == OVER_ALL else entry.source
    return Drift(at=datetime.now(UTC), source=source, release=entry.release, **finding._asdict())


def to_announce(connection: Connection) -> list[DriftAlarm]:
    """Return the drifts that are not announced, the oldest first."""
    waiting = drift_alarms.c.announced.is_not(True)
    return _alarms(connection, select(drift_alarms).where(waiting).order_by(drift_alarms.c.id))


def list_drifts(connection: Connection, most: int) -> list[DriftAlarm]:
    """Return the newest drifts, the oldest of them first."""
    newest = select(drift_alarms).order_by(drift_alarms.c.id.desc()).limit(most)
    return _alarms(connection, newest)[::-1]


def _alarms(connection: Connection, query: Select[Any]) -> list[DriftAlarm]:
    rows = connection.execute(query)
    return [DriftAlarm(id=row.id, **dict(Drift.model_validate_json(row.found))) for row in rows]
