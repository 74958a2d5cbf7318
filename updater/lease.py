"""How an update says that it lives and how far it is: to its row, to the metrics and to the terminal.

Training calls report() many times a second; the row is written by a thread of its own, often enough for
who follows it, so that a stage which reports nothing for minutes does not lose the lease either.
"""

import threading
from types import TracebackType
from typing import Self

import structlog
from sqlalchemy.exc import SQLAlchemyError

from memory.database import cause_of
from updater.metrics import PROGRESS
from updater.progress import Progress
from updater.runs import Lease, LeaseLostError, RunTable

BEATS_A_LEASE = 4
"""at least"""
MAX_PERIOD_S = 1.0
"""between two writes: bars move, and a stage is seen while it lasts"""

log = structlog.get_logger()


class UpdateInterruptedError(Exception):
    """The process was asked to end; the run goes back to the queue as far as it has come."""


class LeaseHeartbeat:
    """Renews a lease until it is left; use it as a context around the work.

    stop is set by whoever wants this process to end. show gets every report as it comes.
    """

    def __init__(
        self, table: RunTable, lease: Lease, lease_s: float, stop: threading.Event, show: Progress
    ) -> None:
        self._table = table
        self._lease = lease
        self._period_s = min(lease_s / BEATS_A_LEASE, MAX_PERIOD_S)
        self._stop = stop
        self._show = show
        self._at = ("start", 0, 0)
        self._lost: LeaseLostError | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()
        PROGRESS.set(0)

    def report(self, stage: str, done: int, total: int) -> None:
        """Say where the work stands. Raises LeaseLostError or UpdateInterruptedError: the work ends here."""
        self._at = (stage, done, total)
        PROGRESS.set(done / total if total else 0)
        self._show(stage, done, total)
        self.check()

    def check(self) -> None:
        """Raise LeaseLostError where another took over, UpdateInterruptedError where this one is to end."""
        if self._lost is not None:
            raise self._lost
        if self._stop.is_set():
            raise UpdateInterruptedError("the process was asked to end")

    def assert_held(self) -> None:
        """Ask the database itself whether the lease still holds: before what a zombie must not do.

        Raises LeaseLostError.
        """
        self._table.heartbeat(self._lease, *self._at)

    def _beat(self) -> None:
        while not self._left.wait(self._period_s):
            try:
                self._table.heartbeat(self._lease, *self._at)
            except LeaseLostError as error:
                self._lost = error
                return
            except SQLAlchemyError as error:
                # The database may come back within the lease; if not, the successor's token decides.
                log.warning("lease not renewed, trying again", run=self._lease.run, error=cause_of(error))
