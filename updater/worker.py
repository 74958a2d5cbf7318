"""The updater's process: the schedule writes rows, and this loop works them off one by one."""

import os
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

from ingest.process.health import Heartbeat
from ingest.process.settings import ProcessSettings
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError
from updater import metrics
from updater.progress import Show
from updater.records import UpdateRun
from updater.runner import Parts, open_parts, work
from updater.runs import LeaseLostError
from updater.settings import UpdaterSettings
from updater.training_data import labelled_since

LONGEST_PAUSE_S = 60.0

log = structlog.get_logger()


def run_once(
    settings: UpdaterSettings, memory: MemorySettings | None = None, stop: threading.Event | None = None
) -> UpdateRun | None:
    """Work the queue off until it is empty, after asking for an update where it is empty already.

    Returns the run that was worked on last; None where another runner holds the one that runs. Its
    state is `queued` where deploy or the memory could not be reached, or where stop was set.
    """
    stop = stop or threading.Event()
    with open_parts(settings, memory or MemorySettings()) as parts, _terminal() as show:
        if not parts.table.count_by_state().get("queued"):
            parts.table.request(f"manual/{token_hex(8)}", "manual", "python -m updater --once")
        last = None
        while run := _step(parts, _runner_name(), stop, show):
            last = run
            if run.state == "queued":
                break
        return last


def run(parts: Parts, stop: threading.Event, heartbeat: Heartbeat) -> None:
    """Work the queue off, and look for what comes into it, until stop is set."""
    runner = _runner_name()
    pause_s = parts.settings.poll_interval_s
    with _terminal() as shown:

        def show(stage: str, done: int, total: int) -> None:
            heartbeat.beat()
            shown(stage, done, total)

        while not stop.is_set():
            problem = None
            try:
                metrics.WAITING.set(labelled_since(parts.store, parts.table.labels_seen()))
                worked = _step(parts, runner, stop, show)
                if worked is not None and worked.state == "queued" and not stop.is_set():
                    problem = f"update {worked.id} {worked.error}"
            except (SQLAlchemyError, ExemplarMemoryError) as error:
                log.warning("the database does not answer, trying again", error=str(error))
                problem = f"the database does not answer: {error}"
            heartbeat.beat(problem)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if problem else parts.settings.poll_interval_s
            stop.wait(pause_s)


def _step(parts: Parts, runner: str, stop: threading.Event, show: Show) -> UpdateRun | None:
    lease = parts.table.claim(runner)
    if lease is None:
        return None
    try:
        return work(parts, lease, stop, show)
    except LeaseLostError as error:
        log.warning("lease lost", run=lease.run, error=str(error))
        return parts.table.get(lease.run)


def _runner_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@contextmanager
def _terminal() -> Iterator[Show]:
    """Yield what shows the progress: a bar where a person watches, else one log line a stage."""
    if not sys.stderr.isatty() or ProcessSettings().log_format == "json":
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
            log.info("update stage", stage=stage, steps=total)

    return show
