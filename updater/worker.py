"""The updater's process: the schedule writes rows, and this loop works them off one by one."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy.exc import SQLAlchemyError

from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError
from updater import metrics, schedule
from updater.progress import Show
from updater.records import UpdateRun
from updater.runner import Parts, open_parts, work
from updater.runs import LeaseLost
from updater.settings import UpdaterSettings
from updater.training_data import labelled_since

LONGEST_PAUSE_S = 60.0

log = structlog.get_logger(__name__)


def run_once(settings: UpdaterSettings, memory: MemorySettings | None = None) -> UpdateRun | None:
    """Work the queue off until it is empty, after asking for an update where it is empty already.

    Returns the run that was worked on last; None where another runner holds the one that runs. Its
    state is `queued` where deploy or the memory could not be reached.
    """
    with open_parts(settings, memory or MemorySettings()) as parts, _terminal() as show:
        if not parts.table.count_by_state().get("queued"):
            parts.table.request(f"manual/{token_hex(8)}", "manual", "python -m updater --once")
        last = None
        while run := _step(parts, _runner_name(), threading.Event(), show):
            last = run
            if run.state == "queued":
                break
        return last


def serve(settings: UpdaterSettings, memory: MemorySettings) -> None:
    """Run the schedule and the queue until SIGTERM or SIGINT.

    A run that is under way then goes back to the queue with what it has reached; the next process
    on this work folder goes on there.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server, server_thread = metrics.serve(settings)
    try:
        with open_parts(settings, memory) as parts, _terminal() as show:
            scheduler = schedule.start(settings, parts.table, lambda seen: labelled_since(parts.store, seen))
            try:
                _loop(parts, stop, show)
            finally:
                scheduler.shutdown()
    finally:
        server.shutdown()
        server_thread.join()


def _loop(parts: Parts, stop: threading.Event, show: Show) -> None:
    runner = _runner_name()
    pause_s = parts.settings.poll_interval_s
    log.info("updater_started", runner=runner)
    while not stop.is_set():
        try:
            metrics.show_runs(parts.table)
            metrics.WAITING.set(labelled_since(parts.store, parts.table.labels_seen()))
            run = _step(parts, runner, stop, show)
            waits = run is not None and run.state == "queued"
        except (SQLAlchemyError, ExemplarMemoryError) as error:
            log.warning("database_unavailable", error=str(error))
            waits = True
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if waits else parts.settings.poll_interval_s
        stop.wait(pause_s)
    log.info("updater_stopped", runner=runner)


def _step(parts: Parts, runner: str, stop: threading.Event, show: Show) -> UpdateRun | None:
    lease = parts.table.claim(runner)
    if lease is None:
        return None
    try:
        return work(parts, lease, stop, show)
    except LeaseLost as error:
        log.warning("lease_lost", run=lease.run, error=str(error))
        return parts.table.get(lease.run)


def _runner_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@contextmanager
def _terminal() -> Iterator[Show]:
    """Yield what shows the progress: a bar where a person watches, else one log line a stage."""
    if not sys.stderr.isatty():
        yield _log_stages()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield show


def _log_stages() -> Show:
    shown = ""

    def show(stage: str, done: int, total: int) -> None:
        nonlocal shown
        if stage != shown:
            shown = stage
            log.info("update_stage", stage=stage, steps=total)

    return show
