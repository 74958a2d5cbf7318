"""The updater's process: its services opened in order, then the schedule and the queue, or the queue once."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import structlog
from apscheduler.triggers.base import BaseTrigger
from sqlalchemy.exc import SQLAlchemyError

from ingest.process.frame import DONE, FAILED, Process, failing_on
from ingest.process.health import Disks, serve_health
from memory.crops.object_store import require_files
from memory.database import UnknownLayoutError, cause_of, folder_of, require_openable
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError
from updater import metrics, schedule
from updater.jobs import carrying_as_jobs
from updater.progress import terminal
from updater.runs import Lease, utc_now
from updater.schedule import labelled_since, newest_drift, suspects_labelled_since
from updater.services import UpdaterServices, open_services
from updater.settings import UpdaterSettings
from updater.worker import POLL_S, carry_out, carrying_here, run, run_once, runner_name

_ERRORS = (ExemplarMemoryError, UnknownLayoutError, SQLAlchemyError, OSError, ImportError)

log = structlog.get_logger()


def work(process: Process) -> None:
    """Run the schedule and the queue until told to stop. Raises ProcessFailedError and WrongSettingError.

    A run that is under way then goes back to the queue with what it has reached; the next process on this
    work folder goes on there.
    """
    settings, memory = _settings()
    with failing_on(*_ERRORS), ExitStack() as opened:
        services, address = _open_services(opened, process, settings, memory)
        if (trigger := schedule.build_trigger(settings)) is not None:
            metrics.DUE.set_function(lambda: _due(trigger))
        if settings.job_template:
            carry = opened.enter_context(carrying_as_jobs(services.table, settings.job_template))
        else:
            _show_gpus()
            carry = opened.enter_context(carrying_here(services, process.stop, process.heartbeat))
        scheduler = schedule.start(
            settings,
            services.table,
            lambda seen: labelled_since(services.store, seen),
            lambda seen: suspects_labelled_since(services.store, seen),
            lambda: newest_drift(services.store),
        )
        opened.callback(scheduler.shutdown)
        process.report_started(health=address)
        run(services, process.stop, process.heartbeat, carry)


def work_next(process: Process) -> int:
    """Carry out the run that is next, and end. Raises as `work` does.

    Returns the exit code: 0 where the run has ended, however it did, or where there is none; else 1, and the
    next process on this work folder goes on there.
    """
    settings, memory = _settings()
    with failing_on(*_ERRORS), ExitStack() as opened:
        services, address = _open_services(opened, process, settings, memory)
        _show_gpus()
        process.report_started(health=address)
        lease = _await_lease(services, process)
        if lease is None:
            waiting = {"queued", "running"} & services.table.count_by_state().keys()
            log.info("no update to carry out", others=sorted(waiting))
            return FAILED if waiting else DONE
        screen = opened.enter_context(terminal())

        def show(stage: str, done: int, total: int) -> None:
            process.heartbeat.beat()
            screen(stage, done, total)

        ended = carry_out(services, lease, process.stop, show)
        return FAILED if ended.state in ("queued", "running") else DONE


def _open_services(
    opened: ExitStack, process: Process, settings: UpdaterSettings, memory: MemorySettings
) -> tuple[UpdaterServices, str]:
    """Open the services, with the health before them; returns its address too."""
    address = opened.enter_context(
        serve_health(
            process.metrics_host,
            settings.metrics_port,
            process.heartbeat,
            lambda: hindrance(services),  # not asked before the first beat
            metrics.REGISTRY,
        )
    )
    services = opened.enter_context(open_services(settings, memory))
    database, tmp = folder_of(settings.database_url), Path(tempfile.gettempdir())
    folders: dict[str, Path | None] = {"work": settings.work_dir, "database": database, "tmp": tmp}
    for collector in (metrics.Runs(services.table), Disks(folders)):
        metrics.REGISTRY.register(collector)
    return services, address


def _show_gpus() -> None:
    from updater.gpus import devices  # its package is not where updates run as Jobs

    for collector in devices():
        metrics.REGISTRY.register(collector)


def _await_lease(services: UpdaterServices, process: Process) -> Lease | None:
    """Claim the run that is next, if need be once the lease of a runner that died has run out.

    None where there is nothing to claim, where another runner lives, or where the process was told to stop.
    """
    table, lease_s = services.table, services.settings.lease_s
    deadline = time.monotonic() + 2 * lease_s
    while True:
        process.heartbeat.beat()
        lease = table.claim(runner_name())
        if lease is not None or not {"queued", "running"} & table.count_by_state().keys():
            return lease
        if time.monotonic() > deadline or process.stop.wait(min(POLL_S, lease_s / 4)):
            return None


def work_once(process: Process) -> int:
    """Work off the queue, or one update, and print the last run's result as JSON.

    Returns the exit code: 0 for a proposal, else 1. Raises as `work` does.
    """
    settings, memory = _settings()
    with failing_on(*_ERRORS):
        process.report_started()
        last = run_once(settings, memory, process.stop)
    if last is None:
        log.error("another runner holds the update that runs now")
        return FAILED
    print(last.model_dump_json(indent=1))  # noqa: T201 - the result; the log goes to the standard error
    return DONE if last.state in ("proposed", "proposed with findings") else FAILED


def hindrance(services: UpdaterServices) -> str | None:
    """Give in one line why no update would be begun now though the loop goes on; None: one would be."""
    try:
        services.table.count_by_state()
    except SQLAlchemyError as error:
        return f"the database of the update runs does not answer: {cause_of(error)}"
    return services.crops.hindrance()


def _settings() -> tuple[UpdaterSettings, MemorySettings]:
    settings, memory = UpdaterSettings(), MemorySettings()
    require_openable("FORGEWATCH_UPDATER_DATABASE_URL", settings.database_url)
    require_openable("FORGEWATCH_MEMORY_DATABASE_URL", memory.database_url)
    require_files("FORGEWATCH_MEMORY_CROPS_URL", memory.crops_url)
    return settings, memory


def _due(trigger: BaseTrigger) -> float:
    return next((due.timestamp() for due in schedule.next_due(trigger, utc_now())), 0.0)
