"""The updater's process: its parts opened in order, then the schedule and the queue, or the queue once."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import structlog
from apscheduler.triggers.base import BaseTrigger
from sqlalchemy.exc import SQLAlchemyError

from ingest.process.disk import Disks
from ingest.process.frame import DONE, FAILED, Process, failing_on
from ingest.process.health import serve_health
from memory.database import folder_of, require_openable
from memory.migrate import UnknownLayoutError
from memory.object_store import require_files
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError
from updater import metrics, schedule
from updater.gpus import devices
from updater.runner import Parts, open_parts
from updater.runs import utc_now
from updater.settings import UpdaterSettings
from updater.training_data import labelled_since
from updater.worker import run, run_once

_ERRORS = (ExemplarMemoryError, UnknownLayoutError, SQLAlchemyError, OSError, ImportError)

log = structlog.get_logger()


def work(process: Process) -> None:
    """Run the schedule and the queue until told to stop. Raises ProcessFailedError and WrongSettingError.

    A run that is under way then goes back to the queue with what it has reached; the next process on this
    work folder goes on there.
    """
    settings, memory = _settings()
    with failing_on(*_ERRORS), ExitStack() as opened:
        address = opened.enter_context(
            serve_health(
                settings.metrics_host,
                settings.metrics_port,
                process.heartbeat,
                lambda: hindrance(parts),  # not asked before the first beat
                metrics.REGISTRY,
            )
        )
        parts = opened.enter_context(open_parts(settings, memory))
        for collector in (metrics.Runs(parts.table), Disks(_folders(settings)), *devices()):
            metrics.REGISTRY.register(collector)
        if (trigger := schedule.build_trigger(settings)) is not None:
            metrics.DUE.set_function(lambda: _due(trigger))
        scheduler = schedule.start(settings, parts.table, lambda seen: labelled_since(parts.store, seen))
        opened.callback(scheduler.shutdown)
        process.started(health=address)
        run(parts, process.stop, process.heartbeat)


def work_once(process: Process) -> int:
    """Work off what is queued, or one update, and print what became of the last run as JSON.

    Returns the exit code: 0 for a proposal, else 1. Raises as `work` does.
    """
    settings, memory = _settings()
    with failing_on(*_ERRORS):
        process.started()
        last = run_once(settings, memory, process.stop)
    if last is None:
        log.error("another runner holds the update that runs now")
        return FAILED
    print(last.model_dump_json(indent=1))  # noqa: T201 - the result; the log goes to the standard error
    return DONE if last.state == "proposed" else FAILED


def hindrance(parts: Parts) -> str | None:
    """Give in one line why no update would be begun now though the loop goes on; None: one would be."""
    try:
        parts.table.count_by_state()
    except SQLAlchemyError as error:
        return f"the database of the update runs does not answer: {error}"
    return parts.crops.hindrance()


def _settings() -> tuple[UpdaterSettings, MemorySettings]:
    settings, memory = UpdaterSettings(), MemorySettings()
    require_openable("FORGEWATCH_UPDATER_DATABASE_URL", settings.database_url)
    require_openable("FORGEWATCH_MEMORY_DATABASE_URL", memory.database_url)
    require_files("FORGEWATCH_MEMORY_CROPS_URL", memory.crops_url)
    return settings, memory


def _folders(settings: UpdaterSettings) -> dict[str, Path | None]:
    return {
        "work": settings.work_dir,
        "database": folder_of(settings.database_url),
        "tmp": Path(tempfile.gettempdir()),
    }


def _due(trigger: BaseTrigger) -> float:
    due = schedule.next_due(trigger, utc_now())
    return 0.0 if due is None else due.timestamp()
