"""Which sources are watched, and the alarms that they raised: rows in and out of a transaction."""

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from sqlalchemy import Column, Connection, Table, delete, func, insert, select, update

from memory import acts
from memory.records import Raised, ShiftAlarm
from memory.rows import now_ms
from memory.schema import alarms, digest_of_source, watched, watched_releases
from memory.settings import MemorySettings
from memory.shift.shift_test import ShiftTest

SHIFT = "shift"
"""What the record calls an alarm."""

SEEN = 200
"""Newest items of a source that are remembered by where they are: suspects are sought among them."""

MAX_REFERENCE = 1000
"""Scores that a source's test keeps: a rank among them moves by a thousandth, and a source takes 50 kB."""

MOST_ALARMS = 1000
"""Rows of alarms of a kind, some 20 kB each: a producer that shifts for ever raises them for ever."""


class Seen(BaseModel, frozen=True):
    """An item called real: where its media is, and how its score ranked among its source's own."""

    topic: str
    partition: int
    offset: int
    digest: str
    score: float
    p: float | None = None
    """its p-value; None while the test gathered"""


@dataclass
class ShiftState:
    """A source and its test. seen are the newest items.

    number is the test's among all of its release that have bet; 0 while it gathers, which costs no budget.
    """

    release: str
    source: str
    number: int
    test: ShiftTest
    seen: list[Seen]


@dataclass(frozen=True)
class Alarm:
    """An alarm whose suspects wait to be shelved. others are items of the source from before the shift."""

    id: int
    raised: Raised
    suspects: tuple[Seen, ...]
    others: tuple[Seen, ...]


def load(connection: Connection, release: str, source: str, settings: MemorySettings) -> ShiftState:
    """Return a watched source, with a test that begins where it was not watched."""
    here = (watched.c.release == release) & (watched.c.source_digest == digest_of_source(source))
    row = connection.execute(select(watched).where(here)).first()
    if row is None:
        return begin(release, source, settings)
    seen = [Seen.model_validate(entry) for entry in json.loads(row.seen)]
    return ShiftState(release, source, row.number, ShiftTest.from_bytes(row.test), seen)


def begin(release: str, source: str, settings: MemorySettings) -> ShiftState:
    """Begin a source's test, which gathers first."""
    test = ShiftTest(secrets.randbits(62), settings.min_reference, MAX_REFERENCE)
    return ShiftState(release, source, 0, test, [])


def next_number(connection: Connection, release: str, counted: Column[int] = watched_releases.c.tests) -> int:
    """Return the next number of a release's tests of one kind: its share of the budget follows from it."""
    here = watched_releases.c.release == release
    begun = connection.scalar(select(counted).where(here))
    if begun is None:
        connection.execute(insert(watched_releases).values({"release": release, counted.name: 1}))
    else:
        connection.execute(update(watched_releases).where(here).values({counted.name: begun + 1}))
    return (begun or 0) + 1


def save(connection: Connection, entry: ShiftState, new_ms: int = 0) -> None:
    """Write a watched source, new to the watch since then where it is one more."""
    here = (watched.c.release == entry.release) & (watched.c.source_digest == digest_of_source(entry.source))
    values = {"number": entry.number, "test": entry.test.to_bytes(), "seen": _dump(entry.seen)}
    values["seen_ms"] = now_ms()
    if not connection.execute(update(watched).where(here).values(values)).rowcount:
        values |= {"release": entry.release, "source": entry.source, "new_ms": new_ms}
        connection.execute(insert(watched).values(values))


def put_raised(
    connection: Connection, raised: Raised, suspects: Sequence[Seen], others: Sequence[Seen]
) -> None:
    """Write an alarm whose suspects are to be shelved."""
    row = {"raised": raised.model_dump_json(), "suspects": _dump(suspects), "others": _dump(others)}
    connection.execute(insert(alarms).values(**row, announced=False))


def to_shelve(connection: Connection) -> list[Alarm]:
    """Return the alarms whose suspects are not shelved, the oldest first."""
    rows = connection.execute(select(alarms).where(alarms.c.evidence.is_(None)).order_by(alarms.c.id))
    return [
        Alarm(row.id, Raised.model_validate_json(row.raised), _load(row.suspects), _load(row.others))
        for row in rows
    ]


def waits(connection: Connection, alarm: int) -> bool:
    query = select(alarms.c.id).where(alarms.c.id == alarm, alarms.c.evidence.is_(None))
    return connection.execute(query).first() is not None


def put_shelved(connection: Connection, alarm: ShiftAlarm) -> None:
    """Write an alarm's content once its suspects are shelved, and put it on record (`Store.write`)."""
    acts.append(connection, acts.MEMORY, SHIFT, alarm.source, alarm.model_dump(mode="json"))
    connection.execute(update(alarms).where(alarms.c.id == alarm.id).values(evidence=alarm.model_dump_json()))


def to_announce(connection: Connection) -> list[ShiftAlarm]:
    """Return the alarms that are shelved and not announced, the oldest first."""
    waiting = alarms.c.evidence.is_not(None) & alarms.c.announced.is_not(True)
    evidence = connection.scalars(select(alarms.c.evidence).where(waiting).order_by(alarms.c.id))
    return [ShiftAlarm.model_validate_json(entry) for entry in evidence]


def put_announced(connection: Connection, ids: Iterable[int], table: Table = alarms) -> None:
    """Note that alarms are announced. They stay on the record; of the table the MOST_ALARMS newest stay."""
    connection.execute(update(table).where(table.c.id.in_(list(ids))).values(announced=True))
    newest = connection.scalar(select(func.max(table.c.id))) or 0
    old = table.c.id <= newest - MOST_ALARMS
    connection.execute(delete(table).where(old, table.c.announced.is_(True)))


def _dump(some: Sequence[Seen]) -> str:
    return json.dumps([entry.model_dump() for entry in some])


def _load(text: str) -> tuple[Seen, ...]:
    return tuple(Seen.model_validate(entry) for entry in json.loads(text))
