"""The frame that every process runs in: settings, signals, logs, heartbeat and exit codes.

Exit codes: 0 it was told to stop; 1 it cannot start or go on, and a supervisor should start it again; 2 a
setting is wrong, and starting it again does not help. A second signal ends the process at once, by itself.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import structlog
from prometheus_client import Gauge
from pydantic_settings import BaseSettings

from ingest.process.health import Heartbeat
from ingest.process.settings import Problem, ProcessSettings, find_problems

DONE, FAILED, WRONG_SETTING = 0, 1, 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger()

PROCESS = Gauge(
    "forgewatch_process_info", "1, with what this process is: detector, memory, updater or deploy", ["room"]
)


class WrongSettingError(Exception):
    """Fatal until a setting changes, which starting again does not do."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.problem = Problem(setting, problem)


class ProcessFailedError(Exception):
    """The process cannot start or go on; the text says in one line why. Starting it again may help."""


class Process:
    """What the frame lends to the body of a process: the request to stop, and the heartbeat."""

    def __init__(self, settings: ProcessSettings, stopped: int = DONE) -> None:
        self.stop = threading.Event()
        self._stopped = stopped
        self.heartbeat = Heartbeat()
        self.metrics_host = settings.metrics_host
        self.starting = True
        self._told, self._tell = os.pipe()
        self._listener = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._listener.start()

    def started(self, **fields: object) -> None:
        """Log that the start is over. From here on a signal only sets `stop`, for the loop to look at."""
        self.starting = False
        log.info("started", **fields)

    def meet_signals(self) -> None:
        """From here on the first SIGTERM or SIGINT asks the process to stop, and a second one ends it."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def settle(self) -> None:
        """Wait until what a signal has begun is done."""
        if self._signalled:
            self._listener.join()

    @property
    def _signalled(self) -> bool:
        return signal.getsignal(_SIGNALS[0]) == signal.SIG_DFL

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # This runs between any two steps of the main thread, which may hold the lock of `stop` or of the
        # log just then: to take one of them here would be to wait for oneself.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        os.write(self._tell, bytes([number]))
        if self.starting:
            raise SystemExit(self._stopped)

    def _listen(self) -> None:
        (number,) = os.read(self._told, 1)
        log.info("told to stop", signal=signal.Signals(number).name)
        self.stop.set()


def run(
    room: str,
    kinds: Sequence[type[BaseSettings]],
    body: Callable[[Process], int | None],
    *,
    stopped: int = DONE,
) -> int:
    """Run the body of a process in the frame; returns the exit code, which is the body's where it gives one.

    room is the process's name. kinds are the settings classes that the body reads: it is not begun where
    one of them does not fit the environment. The body loads what takes long to load, so that a signal during
    the start is met; calls `Process.started` before its loop; beats in the loop, and leaves it once `stop`
    is set. stopped is the exit code of a signal during the start: one that has work to do has not done it.
    """
    kinds = (ProcessSettings, *kinds)
    problems = find_problems(kinds)
    try:
        settings = ProcessSettings()
    except ValueError:
        settings = ProcessSettings.model_construct()  # the defaults, to say in which way it is wrong
    configure(room, settings)
    if problems:
        return _refuse(problems)
    process = Process(settings, stopped)
    try:  # a signal may end what comes next, or be met before it
        process.meet_signals()
        PROCESS.labels(room).set(1)
        return body(process) or DONE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
    except WrongSettingError as error:
        return _refuse([error.problem])
    except ProcessFailedError as error:
        log.critical(_failure(process), error=str(error))
    except Exception:
        log.critical(_failure(process), exc_info=True)
    finally:
        process.settle()
    return FAILED


@contextmanager
def failing_on(*kinds: type[Exception]) -> Iterator[None]:
    """Turn these errors, which are explained by their own text, into a ProcessFailedError of one line."""
    try:
        yield
    except kinds as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise ProcessFailedError(text) from error


def _failure(process: Process) -> str:
    return "cannot start" if process.starting else "cannot go on"


def _refuse(problems: Sequence[Problem]) -> int:
    for found in problems:
        log.critical("wrong setting", setting=found.setting, problem=found.problem)
    return WRONG_SETTING


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
