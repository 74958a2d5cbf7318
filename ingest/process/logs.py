"""One stream of logs for a process: standard error, for people or as one JSON object a line."""

import logging
import sys
import threading
from typing import Any

import structlog

from ingest.process.settings import ProcessSettings

log = structlog.get_logger()


def configure(room: str, settings: ProcessSettings) -> None:
    """Send all that this process logs, and what the libraries log by `logging`, to its standard error.

    An event is a sentence in lower case, with its values as fields. A line of JSON has the keys timestamp
    (ISO 8601, UTC), level, room, event and those fields; a library's has logger as well.
    """
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    # Neither renderer shows the local variables of a traceback, which hold settings and so passwords.
    if settings.log_format == "json":
        shared += [lambda _, __, event: event | {"room": room}, structlog.processors.format_exc_info]
        renderer: Any = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,
        )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.INFO if settings.log_level == "debug" else max(level, logging.WARNING))
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_error


def _log_thread_error(given: threading.ExceptHookArgs) -> None:
    name = given.thread.name if given.thread else "unknown"
    error = (given.exc_type, given.exc_value, given.exc_traceback)
    log.error("thread ended by an unexpected error", thread=name, exc_info=error)
