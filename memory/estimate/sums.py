"""Sums of verdicts' probabilities, by day, release, source and class; and the audited ones.

The thread that watches the verdicts writes both in the transaction of its offsets, so each counts once.
"""

import hashlib
import hmac
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from detector.records import Verdict
from ingest.records import InRecord
from memory.estimate.records import KEPT_DAYS
from memory.schema import SOURCE_START, audit_key, audits, estimate_sums

MAX_SOURCES = 200
"""Of a release and day: those that come later are counted together, under no name."""

_WEEK = 7
_COLUMNS = ("day", "release", "source", "called")

Key = tuple[int, str, str, str]
"""day (since 1970, UTC), release, source, and what was said: real, unknown, or a family"""


@dataclass
class Sum:
    """Of verdicts: how many, their probabilities p to be right, p (1 - p), the lowest chance of a draw."""

    items: int = 0
    right: float = 0.0
    variance: float = 0.0
    lowest_chance: float = 1.0

    def add(self, probability: float, chance: float) -> None:
        self.items += 1
        self.right += probability
        self.variance += probability * (1 - probability)
        self.lowest_chance = min(self.lowest_chance, chance)


def note_estimates(connection: Connection, batch: Sequence[tuple[InRecord, Verdict]], weekly: int) -> None:
    """Add verdicts to the sums, and draw some so that about `weekly` a week are audited; 0: none."""
    # What a declaration decided says nothing of the probabilities.
    batch = [(record, verdict) for record, verdict in batch if not verdict.by_declaration]
    if not batch:
        return
    today = max(record.timestamp_ms for record, _ in batch) // DAY_MS
    chance = _chance(connection, batch, weekly)
    key = key_of(connection) if chance else b""
    sums, rows = defaultdict[Key, Sum](Sum), []
    named = _Names(connection)
    for record, verdict in batch:
        day, called, probability = record.timestamp_ms // DAY_MS, called_of(verdict), right_of(verdict)
        source = named(day, verdict.release, verdict.item.source[:SOURCE_START])
        sums[day, verdict.release, source, called].add(probability, chance)
        if called != "unknown" and is_drawn(key, verdict.id, chance):
            drawn = {"id": verdict.id, "day": day, "release": verdict.release, "source": source}
            media = {"at_ms": record.timestamp_ms, "media_digest": verdict.item.digest}
            rows.append(drawn | media | {"called": called, "probability": probability, "chance": chance})
    _add(connection, sums)
    if rows:
        # A topic that was made anew gives the same ids again.
        connection.execute(delete(audits).where(audits.c.id.in_([row["id"] for row in rows])))
        connection.execute(insert(audits), list({row["id"]: row for row in rows}.values()))
    for table in (estimate_sums, audits):
        connection.execute(delete(table).where(table.c.day < today - KEPT_DAYS))


def called_of(verdict: Verdict) -> str:
    """Return the class that a verdict says: real, unknown, or the family of a forgery."""
    return verdict.family or verdict.label if verdict.label == "fake" else verdict.label


def right_of(verdict: Verdict) -> float:
    """Return the probability that the verdict's class is right; 0 of an unknown one, and of NaN."""
    if verdict.label == "unknown":
        return 0.0
    p = 1 - verdict.fake_probability if verdict.label == "real" else verdict.family_probability or 0.0
    return min(1.0, max(0.0, p))  # in this order NaN becomes 0


def _chance(connection: Connection, batch: Sequence[tuple[InRecord, Verdict]], weekly: int) -> float:
    """Return the chance of a draw: by the items of the week before, and not by these verdicts."""
    now_ms = max(record.timestamp_ms for record, _ in batch)
    first = now_ms // DAY_MS - (_WEEK - 1)
    of_week = estimate_sums.c.day >= first
    begun, before = connection.execute(
        select(func.min(estimate_sums.c.day), func.sum(estimate_sums.c["items"])).where(of_week)
    ).one()
    begun_ms = DAY_MS * (now_ms // DAY_MS if begun is None else begun)
    days = max(now_ms - begun_ms, DAY_MS / 24) / DAY_MS
    return min(1.0, weekly * days / (_WEEK * (len(batch) + int(before or 0))))


class _Names:
    """Sources under which is counted: their own, or, of too many a day, none."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[int, str], set[str]] = {}

    def __call__(self, day: int, release: str, source: str) -> str:
        known = self._known.get((day, release))
        if known is None:
            here = (estimate_sums.c.day == day) & (estimate_sums.c.release == release)
            query = select(estimate_sums.c.source).where(here).distinct()
            known = self._known[day, release] = set(self._connection.scalars(query))
        if source not in known and len(known) >= MAX_SOURCES:
            return ""
        known.add(source)
        return source


def _add(connection: Connection, sums: dict[Key, Sum]) -> None:
    table = estimate_sums.c
    for key, added in sorted(sums.items()):  # in one order, so that two processes do not wait for each other
        here = [table[name] == value for name, value in zip(_COLUMNS, key, strict=True)]
        lowest = connection.scalar(select(table.lowest_chance).where(*here))
        if lowest is None:
            values = dict(zip(_COLUMNS, key, strict=True)) | vars(added)
            connection.execute(insert(estimate_sums).values(values))
            continue
        connection.execute(
            update(estimate_sums)
            .where(*here)
            .values(
                items=table["items"] + added.items,
                right=table.right + added.right,
                variance=table.variance + added.variance,
                lowest_chance=min(lowest, added.lowest_chance),
            )
        )


DAY_MS = 86_400_000


def is_drawn(key: bytes, id_: str, chance: float) -> bool:
    """Say whether an id is drawn. Nobody without the key can tell, and an id is always drawn alike."""
    if chance <= 0:
        return False
    number = int.from_bytes(hmac.digest(key, id_.encode(), hashlib.sha256)[:8])
    return number < chance * 2**64


def key_of(connection: Connection) -> bytes:
    """Return this memory's key, which is made once."""
    key = connection.scalar(select(audit_key.c.key))
    if key is None:
        key = secrets.token_bytes(32)
        connection.execute(insert(audit_key).values(id=1, key=key))
    return bytes(key)
