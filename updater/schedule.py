"""When an update comes due: a schedule, a count of new labels, an alarm's labels, or a drift.

They only write rows.

APScheduler keeps its jobs in memory, since a job store that two processes share doubles and drops
jobs. Two hosts may therefore both run this schedule: each writes the row of the due slot, and the
slot is unique.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal
from zoneinfo import ZoneInfo

import structlog
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from memory.labels import UNDONE
from memory.rows import suspects_of_alarms
from memory.schema import exemplars, labelled, labels
from memory.shift.drift import list_drifts
from memory.store import ExemplarMemoryError, Store
from updater.cron import EPOCH, read_cron
from updater.records import UpdateRun
from updater.runs import RunTable, utc_now
from updater.settings import UpdaterSettings

POLL_S = 1.0
"""between two looks at what has come due"""
GRACE_S = 3600
"""A due update that could not start is made up for this long: after that, the next one is as good."""

log = structlog.get_logger(__name__)


def build_trigger(settings: UpdaterSettings) -> BaseTrigger | None:
    """Return the settings' schedule as an APScheduler trigger, or None where there is none."""
    if settings.schedule is None:
        return None
    if settings.schedule.isdecimal():
        return IntervalTrigger(seconds=int(settings.schedule), start_date=EPOCH, timezone=UTC)
    return read_cron(settings.schedule, ZoneInfo(settings.schedule_timezone))


def due_slot(trigger: BaseTrigger, now: datetime) -> datetime | None:
    """Return the newest time at or before `now` at which the trigger was due, at most an hour ago.

    Any two processes that ask between two due times get the same answer, which is why the slot is
    asked for here and not taken from the moment at which a job happens to run. None if there is none.
    """
    newest = None
    due = trigger.get_next_fire_time(None, now - timedelta(seconds=GRACE_S))
    while due is not None and due <= now:
        newest = due
        due = trigger.get_next_fire_time(due, due + timedelta(microseconds=1))
    return newest


def next_due(trigger: BaseTrigger | None, now: datetime, count: int = 1) -> list[datetime]:
    """Return the first times after `now` at which the trigger is due; none without a trigger."""
    times: list[datetime] = []
    while trigger and len(times) < count and (due := trigger.get_next_fire_time(None, now)):
        times.append(due)
        now = due + timedelta(microseconds=1)
    return times


def request_scheduled(table: RunTable, trigger: BaseTrigger, now: datetime) -> UpdateRun | None:
    """Write the row of the slot that is due; returns it if this call made it."""
    due = due_slot(trigger, now)
    if due is None:
        return None
    run, made = table.request(f"scheduled/{due.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", "scheduled", "schedule")
    return run if made else None


def request_labelled(
    table: RunTable, trigger: Literal["count", "alarm"], labelled_since: Callable[[int], int], needed: int
) -> UpdateRun | None:
    """Write a row when `needed` exemplars were labelled since the labels that the last update saw.

    The slot is named by the run before it, so that two hosts which count the same labels write one
    row; and a run that failed is not followed by another before new labels come, or a person asks.
    """
    newest = table.newest(1)
    if newest and newest[0].state in ("queued", "running"):
        return None  # it will see these labels itself
    if labelled_since(table.labels_seen()) < needed:
        return None
    run, made = table.request(f"{trigger}/{newest[0].id if newest else 0}", trigger, "schedule")
    return run if made else None


def request_drifted(
    table: RunTable, newest_drift: Callable[[], datetime | None], now: datetime
) -> UpdateRun | None:
    """Write a row where verdicts drifted within GRACE_S and no update was asked for since.

    The slot is named by the drift's time, so that no drift has two updates, whatever became of the first.
    """
    newest = table.newest(1)
    if newest and newest[0].state in ("queued", "running"):
        return None  # the drift is asked about again when that has ended
    at = newest_drift()
    if at is None or now - at > timedelta(seconds=GRACE_S) or (newest and newest[0].requested_at >= at):
        return None
    run, made = table.request(f"drift/{at.astimezone(UTC).isoformat()}", "drift", "schedule")
    return run if made else None


class Slots:
    """Asks for the update of each slot that comes due, once; called again and again.

    A slot that could not be written is asked for again by the next call, until a newer one is due or its
    grace time is over.
    """

    def __init__(self, table: RunTable, trigger: BaseTrigger, clock: Callable[[], datetime]) -> None:
        self._table, self._trigger, self._clock = table, trigger, clock
        self._begun = False
        self._written: datetime | None = None

    def __call__(self) -> None:
        """Write the row of the slot that is due, unless it was written. Raises SQLAlchemyError."""
        now = self._clock()
        due = due_slot(self._trigger, now)
        if not self._begun and not self._table.newest(1):
            self._written = due  # a system that never ran has missed nothing
        self._begun = True
        if due is not None and due != self._written:
            request_scheduled(self._table, self._trigger, now)
            self._written = due


def start(
    settings: UpdaterSettings,
    table: RunTable,
    labelled_since: Callable[[int], int],
    suspects_labelled_since: Callable[[int], int],
    newest_drift: Callable[[], datetime | None],
    clock: Callable[[], datetime] = utc_now,
) -> BackgroundScheduler:
    """Start the schedule on its own thread; shut the returned scheduler down to end it.

    A slot that came due while no scheduler lived, or while the database did not answer, is made up for for an
    hour: the thread does not wait for the due moment, but looks again and again what has come due.
    """
    looks: dict[str, Callable[[], object]] = {}
    trigger = build_trigger(settings)
    if trigger is not None:
        looks["slot"] = Slots(table, trigger, clock)
    if settings.min_new_exemplars is not None:
        needed = settings.min_new_exemplars
        looks["count"] = partial(request_labelled, table, "count", labelled_since, needed)
    if settings.after_alarm:
        looks["alarm"] = partial(request_labelled, table, "alarm", suspects_labelled_since, 1)
    if settings.after_drift:
        looks["drift"] = lambda: request_drifted(table, newest_drift, clock())
    scheduler = BackgroundScheduler(
        timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
    )
    for name, look in looks.items():
        job = partial(_unless_it_fails, look)
        job()
        scheduler.add_job(job, IntervalTrigger(seconds=POLL_S, timezone=UTC), id=name)
    scheduler.start()
    return scheduler


def _unless_it_fails(look: Callable[[], object]) -> None:
    try:
        look()
    except (SQLAlchemyError, ExemplarMemoryError) as error:
        log.warning("schedule waits for the database", error=str(error).splitlines()[0])


def newest_label(store: Store) -> int:
    """Return the number of the newest label or undo, 0 before the first. Raises StoreUnavailableError."""
    with store.read() as connection:
        return connection.execute(select(func.max(labels.c.id))).scalar() or 0


def known_label(store: Store, label: int) -> int:
    """Return a label's number, or 0 where no label of the memory is as new.

    Then the memory was restored to an earlier time than the update runs, its next labels get numbers that
    were others' before, and nothing is known of what a run has seen. Raises StoreUnavailableError.
    """
    return label if label <= newest_label(store) else 0


def labelled_since(store: Store, label: int) -> int:
    """Return how many exemplars got a class by labels newer than this one which are not undone.

    All that bear a class, where there is no such label yet, as `known_label` has it. Raises
    StoreUnavailableError.
    """
    return len(_labelled_since(store, label))


def suspects_labelled_since(store: Store, label: int) -> int:
    """Return how many of them are suspects of an alarm. Raises StoreUnavailableError."""
    with store.read() as connection:
        suspects = suspects_of_alarms(connection)
    return len(suspects & _labelled_since(store, label)) if suspects else 0


def newest_drift(store: Store) -> datetime | None:
    """Return when verdicts last drifted; None: never. Raises StoreUnavailableError."""
    with store.read() as connection:
        newest = list_drifts(connection, 1)
    return newest[0].at if newest else None


def _labelled_since(store: Store, label: int) -> set[str]:
    label = known_label(store, label)
    query = (
        select(labelled.c.exemplar)
        .join(exemplars, exemplars.c.id == labelled.c.exemplar)
        .where(labelled.c.label > label, labelled.c.label.not_in(UNDONE), exemplars.c.family.is_not(None))
    )
    with store.read() as connection:
        return set(connection.scalars(query))
