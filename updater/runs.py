"""Update runs as SQL rows: one row a due slot, held by one runner at a time under a lease.

Which runner may write is decided by the row's fencing token, never by a clock: a claim raises the
token, and every later write names the token that it was given. Clocks only decide when a silent
runner counts as dead, so hosts whose clocks disagree lose time, not truth.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import get_args

from sqlalchemy import ColumnElement, Engine, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from memory.database import READS, migrate, open_engine
from memory.rows import count_by
from updater.records import RunState, Trigger, UpdateRun
from updater.schema import runs
from updater.settings import UpdaterSettings

MAX_TAKEOVERS = 2
"""Runners that may die on one run: a first one by chance; what kills three in a row is the run itself."""
ERROR_CHARACTERS = 1_000
"""A longer reason is cut: it is read in tables and in alerts."""


class LeaseLostError(Exception):
    """Another runner took the run over, or it has ended: stop, and write nothing more. Fatal."""


def open_runs(settings: UpdaterSettings) -> "RunTable":
    """Open the table that the settings name, and bring it to today's layout.

    Raises SQLAlchemyError, OSError, ImportError, and memory.database's UnknownLayoutError.
    """
    engine = open_engine(settings.database_url)
    return RunTable(engine, lease_s=settings.lease_s, max_takeovers=MAX_TAKEOVERS)


def utc_now() -> datetime:
    """Return the host's time, aware, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Lease:
    """The right to write one run's row, as long as the row still bears this token."""

    run: int
    token: int
    runner: str


class RunTable:
    """The rows of update runs in one database; safe to share between threads and between hosts.

    lease_s is how long a runner may be silent, in seconds, before its run is taken over;
    max_takeovers is how often that may happen before the run is given up as failed (a run that
    kills its runner by its memory use would otherwise kill one after the other for ever).
    """

    def __init__(
        self,
        engine: Engine,
        *,
        lease_s: float,
        max_takeovers: int = MAX_TAKEOVERS,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._engine = engine
        self._reader = engine.execution_options(**{READS: True})
        self._lease = timedelta(seconds=lease_s)
        self._takeovers_most = max_takeovers
        self._clock = clock
        with engine.begin() as connection:
            migrate(connection, "updater.migrations")

    def request(self, slot: str, trigger: Trigger, requested_by: str) -> tuple[UpdateRun, bool]:
        """Write the slot's row if there is none yet. Returns the row and whether this call made it."""
        row = {"slot": slot, "trigger": trigger, "requested_by": requested_by, "state": "queued"}
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(runs).values(**row, requested_at=self._clock()))
            made = True
        except IntegrityError:
            made = False
        return self._row(runs.c.slot == slot), made

    def claim(self, runner: str) -> Lease | None:
        """Take the run whose holder fell silent, else the oldest queued one; None if there is neither.

        While a live runner holds any run there is nothing to claim: updates run one at a time.
        """
        seen = self.claimable()
        if seen is None:
            return None
        now = self._clock()
        won = self._compare_and_set(
            seen,
            state="running",
            runner=runner,
            token=seen.token + 1,
            error=None,
            takeovers=seen.takeovers + (seen.state == "running"),
            lease_until=now + self._lease,
            started_at=seen.started_at or now,
        )
        return Lease(seen.id, seen.token + 1, runner) if won else None

    def claimable(self) -> UpdateRun | None:
        """Return the run that `claim` would take now, and end those that too many runners died on."""
        while True:
            seen = self._claimable(self._clock())
            if seen is None or seen.state == "queued" or seen.takeovers < self._takeovers_most:
                return seen
            self.give_up(seen, f"gave up after {seen.takeovers + 1} runners died at stage {seen.stage}")

    def give_up(self, seen: UpdateRun, reason: str) -> bool:
        """End a run that nobody holds as failed; False where its row has changed since it was seen."""
        return self._compare_and_set(
            seen, state="failed", error=_cut(reason), finished_at=self._clock(), lease_until=None
        )

    def refuse(self, reason: str, run: int | None = None) -> list[int]:
        """End a run, or each that has begun, as refused; who holds one stops at its next heartbeat."""
        which = runs.c.started_at.is_not(None) if run is None else runs.c.id == run
        begun = runs.c.state.in_(("queued", "running")) & which
        ended = {"state": "refused", "error": _cut(reason), "finished_at": self._clock(), "lease_until": None}
        with self._engine.begin() as connection:
            numbers = connection.scalars(select(runs.c.id).where(begun).with_for_update()).all()
            connection.execute(update(runs).where(runs.c.id.in_(numbers)).values(ended))
        return list(numbers)

    def explain(self, seen: UpdateRun, error: str) -> bool:
        """Write why a run that nobody holds waits; False where its row has changed since it was seen."""
        return self._compare_and_set(seen, error=_cut(error))

    def heartbeat(self, lease: Lease, stage: str, done: int, total: int) -> None:
        """Renew the lease and show the progress. Raises LeaseLostError."""
        self._write(lease, lease_until=self._clock() + self._lease, stage=stage, done=done, total=total)

    def record_newest_label(self, lease: Lease, newest: int) -> None:
        """Keep the number of the newest label in its data, where the next count starts.

        Raises LeaseLostError.
        """
        self._write(lease, labels_seen=newest)

    def release(self, lease: Lease, *, error: str | None = None) -> UpdateRun:
        """Give the run back unfinished; error says why it waits. Raises LeaseLostError."""
        self._write(lease, state="queued", lease_until=None, error=_cut(error))
        return self.get(lease.run)

    def finish(
        self, lease: Lease, state: RunState, *, error: str | None = None, candidate: str | None = None
    ) -> UpdateRun:
        """End the run as proposed (with findings or not), refused or failed.

        Raises LeaseLost; ValueError for another state.
        """
        if state in ("queued", "running"):
            raise ValueError(f"a run does not end as {state}")
        ended = {"state": state, "error": _cut(error), "finished_at": self._clock(), "lease_until": None}
        self._write(lease, candidate=candidate, **ended)
        return self.get(lease.run)

    def get(self, run: int) -> UpdateRun:
        """Return one run. Raises KeyError."""
        return self._row(runs.c.id == run)

    def newest(self, limit: int = 20) -> list[UpdateRun]:
        """Return the runs, the newest first."""
        with self._reader.connect() as connection:
            rows = connection.execute(select(runs).order_by(runs.c.id.desc()).limit(limit)).mappings()
            return [UpdateRun.model_validate(dict(row)) for row in rows]

    def labels_seen(self, *, by: Collection[RunState] = get_args(RunState)) -> int:
        """Return the number of the newest label that the last run in these states had seen; 0 if none."""
        query = select(runs.c.labels_seen).where(runs.c.state.in_(by), runs.c.labels_seen.is_not(None))
        query = query.order_by(runs.c.id.desc()).limit(1)
        with self._reader.connect() as connection:
            return connection.execute(query).scalar() or 0

    def labels_learnt(self, candidate: str) -> int:
        """Return the number of the newest label in a candidate's data; 0 where no run here proposed it."""
        query = select(func.max(runs.c.labels_seen)).where(runs.c.candidate == candidate)
        with self._reader.connect() as connection:
            return connection.execute(query).scalar() or 0

    def close(self) -> None:
        self._engine.dispose()

    def count_by_state(self) -> dict[str, int]:
        """Return how many runs are in each state that any run is in."""
        with self._reader.connect() as connection:
            return count_by(connection, runs.c.state)

    def ended_by_state(self) -> dict[str, datetime]:
        """Return when the latest run ended in each state in which any has."""
        latest = select(runs.c.state, func.max(runs.c.finished_at).label("at"))
        with self._reader.connect() as connection:
            rows = connection.execute(latest.where(runs.c.finished_at.is_not(None)).group_by(runs.c.state))
            return {row.state: row.at for row in rows}

    def _claimable(self, now: datetime) -> UpdateRun | None:
        with self._reader.connect() as connection:
            running = connection.execute(select(runs).where(runs.c.state == "running")).mappings().first()
            if running is not None:
                run = UpdateRun.model_validate(dict(running))
                return run if run.lease_until is not None and run.lease_until < now else None
            oldest = select(runs).where(runs.c.state == "queued").order_by(runs.c.id).limit(1)
            queued = connection.execute(oldest).mappings().first()
            return None if queued is None else UpdateRun.model_validate(dict(queued))

    def _compare_and_set(self, seen: UpdateRun, **values: object) -> bool:
        """Write if the row is still as it was seen; the lease counts too, since its holder may have woken."""
        same = (
            (runs.c.id == seen.id)
            & (runs.c.token == seen.token)
            & (runs.c.state == seen.state)
            & runs.c.lease_until.is_not_distinct_from(seen.lease_until)
        )
        try:
            with self._engine.begin() as connection:
                return connection.execute(update(runs).where(same).values(values)).rowcount == 1
        except IntegrityError:  # another run became the one running
            return False

    def _write(self, lease: Lease, **values: object) -> None:
        mine = (runs.c.id == lease.run) & (runs.c.token == lease.token) & (runs.c.state == "running")
        with self._engine.begin() as connection:
            if connection.execute(update(runs).where(mine).values(values)).rowcount != 1:
                raise LeaseLostError(f"run {lease.run} is no longer held with token {lease.token}")

    def _row(self, condition: ColumnElement[bool]) -> UpdateRun:
        with self._reader.connect() as connection:
            row = connection.execute(select(runs).where(condition)).mappings().first()
        if row is None:
            raise KeyError("no such update run")
        return UpdateRun.model_validate(dict(row))


def _cut(reason: str | None) -> str | None:
    return None if reason is None else reason[:ERROR_CHARACTERS]
