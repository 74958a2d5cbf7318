"""Verdicts of any label are watched for drift, by source and over all: in three statistics, either way.

Each statistic has a two-sided test of its own (`shift_test`), which is held to a third of the budget. So the
chance that any of the three raises a false alarm is at most the budget, however they depend on each other.
"""

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import structlog
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from sqlalchemy import ColumnElement, Connection, Select, insert, select, update

from detector.records import Verdict
from memory import acts
from memory.records import Drift, DriftAlarm, Statistic
from memory.rows import now_ms
from memory.schema import digest_of_source, drift_alarms, drift_watched, watched_releases
from memory.settings import MemorySettings
from memory.shift.alarms import MAX_REFERENCE, next_number
from memory.shift.places import OVER_ALL, Places
from memory.shift.shift_test import ShiftTest, began, share_of_budget

DRIFT = "drift"
"""What the record calls an alarm of drift."""

log = structlog.get_logger()


STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

NEWEST = 200
"""Newest items that are remembered: the same media again is no new item, and a drift began among them."""


class DriftFinding(NamedTuple):
    """The statistic whose test has reached its limit. The fields are as `Drift` has them."""

    statistic: Statistic
    direction: Literal["higher", "lower"]
    items: int
    since: int
    log_e: float
    log_limit: float


@dataclass
class DriftTest:
    """The tests of one source, or of all together."""

    tests: dict[Statistic, ShiftTest]
    p_values: dict[Statistic, NDArray[np.float32]] = field(
        default_factory=lambda: {name: np.zeros(0, np.float32) for name in STATISTICS}
    )
    """[at most NEWEST] each, oldest first"""
    media: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """[at most NEWEST], hashes of the newest items' digests, oldest first"""

    @classmethod
    def begin(cls, seeds: tuple[int, int, int], gather: int, most: int) -> Self:
        """Begin tests that gather first; the arguments are `ShiftTest`'s, with a seed for each statistic."""
        made = zip(STATISTICS, seeds, strict=True)
        return cls({name: ShiftTest.two_sided(seed, gather, most) for name, seed in made})

    def observe(self, verdict: Verdict) -> None:
        """Take the next verdict in, unless it is on the very media of one of the newest, sent again."""
        # Of the text: a verdict that somebody forged may have anything there.
        media = np.frombuffer(blake2b(verdict.item.digest.encode(), digest_size=8).digest(), "<u8")
        if media in self.media:
            return
        self.media = np.append(self.media, media)[-NEWEST:]
        self.take(statistics_of(verdict))

    def take(self, values: Mapping[Statistic, float]) -> None:
        for name, value in values.items():
            p = self.tests[name].observe(value)
            if p is not None:
                self.p_values[name] = np.append(self.p_values[name], np.float32(p))[-NEWEST:]

    @property
    def bets(self) -> int:
        """How many items the test with the most was bet on; 0 while all gather."""
        return max(test.bets for test in self.tests.values())

    def strongest_finding(self, budget: float) -> DriftFinding | None:
        """Return the statistic with the most evidence where that has reached its limit."""
        name = max(STATISTICS, key=lambda name: self.tests[name].log_e)
        test, limit = self.tests[name], -math.log(budget / len(STATISTICS))
        if test.log_e < limit:
            return None
        p_values = self.p_values[name].astype(float)
        since = len(p_values) - began(p_values if test.upwards else 1 - p_values)
        return DriftFinding(name, "higher" if test.upwards else "lower", test.bets, since, test.log_e, limit)

    def to_bytes(self) -> bytes:
        """Return all of it as safetensors, some 20 kB."""
        states: dict[str, NDArray[Any]]
        states = {name: np.frombuffer(test.to_bytes(), np.uint8) for name, test in self.tests.items()}
        states |= {f"{name}.p": values for name, values in self.p_values.items()}
        return save_arrays({**states, "media": self.media})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read back the bytes of `to_bytes`."""
        arrays = load_arrays(data)
        tests = {name: ShiftTest.from_bytes(arrays[name].tobytes()) for name in STATISTICS}
        return cls(tests, {name: arrays[f"{name}.p"] for name in STATISTICS}, arrays["media"])


def statistics_of(verdict: Verdict) -> dict[Statistic, float]:
    """Return a verdict's watched statistics; without those that its release does not give, or not finite."""
    values: dict[Statistic, float | None] = {
        "unknown_score": verdict.unknown_score,
        "energy": verdict.energy,
        "embedding_novelty": (verdict.unknown_parts or {}).get("embedding_novelty"),
    }
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


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
            counted = watched_releases.c.drift_tests
            entry.number = entry.number or next_number(connection, verdict.release, counted)
            if (drift := drift_if_crossed(entry, settings.max_false_alarms)) is not None:
                drifts.append(drift)
                row = {"found": drift.model_dump_json(), "announced": False}
                connection.execute(insert(drift_alarms).values(row))
                about = drift.source or "all sources"
                acts.append(connection, acts.MEMORY, DRIFT, about, drift.model_dump(mode="json"))
                log.warning("verdicts have drifted", **drift.model_dump(exclude={"at"}))
                open_[key] = begin(*key, settings)
    for key, entry in open_.items():
        save(connection, entry, places.let_in(*key) or 0)
    places.settle()
    return drifts


def load(connection: Connection, release: str, source: str, settings: MemorySettings) -> DriftState:
    """Return a watched source, with a test that begins where it was not watched."""
    here = _here(release, source)
    row = connection.execute(select(drift_watched).where(here)).first()
    if row is None:
        return begin(release, source, settings)
    return DriftState(release, source, row.number, DriftTest.from_bytes(row.test))


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
