"""Verdicts are looked at, source by source: an alarm is raised where items called real have shifted.

Where each lies in its topic is written beside it.

Sources and offsets are one SQL transaction, so that each verdict is bet on once, whatever is killed.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from threading import Event

import numpy as np
import structlog
from kafka.errors import KafkaError
from pydantic import ValidationError

from detector.reading import parse_record
from detector.records import VERDICTS, Verdict, Withdrawal
from ingest.kafka.sink import SinkError
from ingest.records import InRecord
from ingest.sandbox.sandbox import SandboxUnavailableError
from ingest.settings import IngestSettings
from memory import metrics
from memory.estimate.sums import note_estimates
from memory.records import Raised
from memory.rows import now_ms
from memory.schema import MAX_SOURCE_CHARS
from memory.schema import watched as watched_table
from memory.settings import MemorySettings
from memory.shift import drift
from memory.shift.alarms import SEEN, Seen, ShiftState, begin, load, next_number, put_raised, save
from memory.shift.places import Places
from memory.shift.shelving import announce_all, shelve_all
from memory.shift.shift_test import began, share_of_budget
from memory.source import RETRY_INTERVAL_S, StoredSource, TopicReading
from memory.store import ExemplarMemoryError, RefusedRowError, Store, save_offsets
from memory.verdict_index import forget_before, ignore_retracted, note_verdicts, release_taken_back

SUSPECT_P = 0.2
"""Suspects are items since the shift began whose score is above all but this share of the source's own."""

MAX_SUSPECTS = 40
MAX_OTHERS = 60
"""Items of a source that suspects are compared with: chosen by the same limit before the shift began."""

_MOST = 500
_TRANSACTION_INTERVAL_S = 1.0
_TELL_AGAIN_S = 30.0
_FORGET_INTERVAL_S = 10.0

Said = Verdict | Withdrawal

log = structlog.get_logger()


def keep_watch(ingest: IngestSettings, settings: MemorySettings, stop: Event) -> None:
    """Look at verdicts until stop is set; a fault costs only a round, which is done again."""
    lags = metrics.WATCH_LAG, metrics.WATCH_LAG_SECONDS
    topic, group = ingest.topic(VERDICTS), settings.verdicts_group_id
    reading = TopicReading(topic, group, _MOST, *lags, metrics.UNWATCHED)
    while not stop.is_set():
        try:
            watch = ShiftWatch(settings)
            try:
                with StoredSource(ingest, reading, watch.store) as source:
                    while not stop.is_set():
                        records = source.poll()
                        watch.take(records, source.topic_id)
                        watch.shelve_and_announce(ingest)
                        watch.forget(source)
                        if len(records) < _MOST:
                            stop.wait(_TRANSACTION_INTERVAL_S)
            finally:
                watch.close()
        except Exception as error:  # nobody watches a thread: whatever it is, the next round tries again
            metrics.WATCH_FAILURES.inc()
            log.warning("verdicts not looked at, done again", error=f"{type(error).__name__}: {error}")
            stop.wait(RETRY_INTERVAL_S)


class ShiftWatch:
    """The tests of all sources, which lie in the memory's database."""

    def __init__(self, settings: MemorySettings) -> None:
        """Open the database. Raises StoreUnavailableError or WrongStoreError."""
        self._settings = settings
        self.store = Store(settings.database_url)
        self.close = self.store.close
        self._tell_at = self._forget_at = -math.inf

    def shelve_and_announce(self, ingest: IngestSettings) -> None:
        """Shelve the suspects of new alarms, and announce those; failures are tried again a while later.

        Nothing of it may hold up the bets.
        """
        if time.monotonic() < self._tell_at:
            return
        try:
            shelve_all(self.store, ingest, self._settings)
            announce_all(self.store, ingest, self._settings)
        except (ExemplarMemoryError, SinkError, SandboxUnavailableError, KafkaError, OSError) as error:
            metrics.WATCH_FAILURES.inc()
            log.warning("alarm not told, done again", error=f"{type(error).__name__}: {error}")
            self._tell_at = time.monotonic() + _TELL_AGAIN_S

    def forget(self, source: StoredSource) -> None:
        """Forget now and then where verdicts lay that the topic has no more.

        Raises StoreUnavailableError and kafka.errors.KafkaError.
        """
        if time.monotonic() < self._forget_at:
            return
        self._forget_at = time.monotonic() + _FORGET_INTERVAL_S
        for partition, first in source.beginnings().items():
            with self.store.write_unversioned() as connection:
                forget_before(connection, partition, first)

    def take(self, records: Sequence[InRecord], topic_id: str | None = None) -> None:
        """Bet on a batch and sum it up, but for corrections: their items counted when first answered.

        Sources, alarms and offsets are one transaction. A record whose values the database does not take is
        stepped over, and its neighbours are not. Raises StoreUnavailableError.
        """
        if records:
            now = now_ms()
            self._take([(written_by(record, now), parse_verdict(record)) for record in records], topic_id)

    def _take(self, batch: Sequence[tuple[InRecord, Said | None]], topic_id: str | None) -> None:
        try:
            self._write(batch, topic_id)
        except RefusedRowError as error:
            if len(batch) > 1:
                # One of them is to blame: halves of halves show which.
                middle = len(batch) // 2
                self._take(batch[:middle], topic_id)
                self._take(batch[middle:], topic_id)
                return
            step_over(batch[0][0], error)
            self._write([(batch[0][0], None)], topic_id)

    def _write(self, batch: Sequence[tuple[InRecord, Said | None]], topic_id: str | None) -> None:
        readable = [(record, verdict) for record, verdict in batch if verdict is not None]
        first_said = [
            (record, verdict)
            for record, verdict in readable
            if isinstance(verdict, Verdict) and verdict.supersedes is None
        ]
        bet_on = [verdict for _, verdict in first_said]
        reals = [real for verdict in bet_on if (real := real_verdict(verdict)) is not None]
        reals.sort(key=itemgetter(0, 1))  # stable: within a source they stay in order
        taken_back = [answer.id for _, answer in readable if release_taken_back(answer) is not None]
        with self.store.write() if taken_back else self.store.write_unversioned() as connection:
            raised, places = 0, Places(connection, watched_table)
            for (release, source), items in groupby(reals, key=itemgetter(0, 1)):
                if (new_ms := places.let_in(release, source)) is None:
                    continue
                watched = load(connection, release, source, self._settings)
                for _, _, item in items:
                    if not observe(watched, item) or watched.test.bets == 0:
                        continue
                    watched.number = watched.number or next_number(connection, release)
                    if alarm := alarm_if_crossed(watched, self._settings.max_false_alarms):
                        put_raised(connection, alarm, *suspects_and_others(watched, alarm.since))
                        log.warning("source has shifted", **alarm.model_dump(exclude={"at"}))
                        watched = begin(release, source, self._settings)
                        raised += 1
                save(connection, watched, new_ms)
            places.settle()
            verdicts = [(verdict.item.source[:MAX_SOURCE_CHARS], verdict) for verdict in bet_on]
            drifts = drift.watch_drift(connection, verdicts, self._settings)
            note_verdicts(connection, readable)
            note_estimates(connection, first_said, self._settings.audit_items)
            ignore_retracted(connection, taken_back)
            after = {(r.topic, r.partition): r.next_offset for r, _ in batch}
            save_offsets(connection, after, topic_id)
        metrics.WATCH_LAG_SECONDS.on_answers(after)
        metrics.WATCHED.inc(len(reals))
        metrics.SHIFT_ALARMS.inc(raised)
        for drifted in drifts:
            metrics.DRIFT_ALARMS.labels(drifted.statistic).inc()


def parse_verdict(record: InRecord) -> Said | None:
    """Return the verdict or the withdrawal that a record holds; None of other records."""
    try:
        return parse_record(record.value, record.headers)
    except ValidationError as error:
        step_over(record, error)
        return None


def written_by(record: InRecord, now: int) -> InRecord:
    """Return a record whose time, which its writer gives, is no later than now: days are kept by it."""
    return replace(record, timestamp_ms=min(max(record.timestamp_ms, 0), now))


def step_over(record: InRecord, error: Exception) -> None:
    """Count and log a record that no detector wrote: nothing else comes of it."""
    metrics.UNREADABLE.inc()
    log.warning("record is no verdict", item=record.id, error=str(error).splitlines()[0])


def real_verdict(verdict: Verdict) -> tuple[str, str, Seen] | None:
    """Return (release, source, item) of a verdict that says real; None of any other.

    The source is the item's, cut to what the database takes.
    """
    if verdict.label != "real" or not math.isfinite(verdict.unknown_score):
        return None
    item = verdict.item
    place = item.model_dump(include={"topic", "partition", "offset", "digest"})
    seen = Seen(**place, score=verdict.unknown_score)
    return verdict.release, item.source[:MAX_SOURCE_CHARS], seen


def observe(watched: ShiftState, item: Seen) -> bool:
    """Take a source's next item in; False where it is the very media of one of the newest, sent again."""
    if any(item.digest == seen.digest for seen in watched.seen):
        return False
    p = watched.test.observe(item.score)
    watched.seen = [*watched.seen, item.model_copy(update={"p": p})][-SEEN:]
    return True


def alarm_if_crossed(watched: ShiftState, budget: float) -> Raised | None:
    """Return the alarm where the evidence of a test that has bet has reached its limit.

    Of the budget's shares these tests have the odd ones, and those of drift the others.
    """
    limit = -math.log(budget * share_of_budget(2 * watched.number - 1))
    if watched.test.log_e < limit:
        return None
    bet_on = [seen.p for seen in watched.seen if seen.p is not None]
    return Raised(
        at=datetime.now(UTC),
        source=watched.source,
        release=watched.release,
        items=watched.test.bets,
        since=len(bet_on) - began(np.array(bet_on)),
        log_e=watched.test.log_e,
        log_limit=limit,
    )


def suspects_and_others(watched: ShiftState, since: int) -> tuple[list[Seen], list[Seen]]:
    """Return the newest suspects of the last `since` items, and those from before them."""
    suspects = [seen for seen in watched.seen[-since:] if seen.p is not None and seen.p <= SUSPECT_P]
    others = [seen for seen in watched.seen[:-since] if seen.p is not None and seen.p <= SUSPECT_P]
    return suspects[-MAX_SUSPECTS:], others[-MAX_OTHERS:]
