"""The frame that every process runs in: settings, signals, logs, heartbeat and exit codes.

Exit codes: 0 it was told to stop; 1 it cannot start or go on, and a supervisor should start it again; 2 a
setting is wrong, and starting it again does not help. A second signal ends the process at once, by itself.
"""

import difflib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import structlog
from prometheus_client import Gauge
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from ingest.process.health import Heartbeat

PREFIX = "FORGEWATCH_"
# Whose names follow the prefix. The settings of a room that a process does not read are not its to judge.
ROOMS = ("INGEST", "DETECTOR", "MEMORY", "UPDATER", "DEPLOY")

# What building a settings class raises: a value that does not fit, or JSON that is none.
UNREADABLE = (ValidationError, SettingsError)


class ProcessSettings(BaseSettings):
    """How any of the processes logs, and where it says how it does: FORGEWATCH_…"""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    log_format: Literal["console", "json"] = Field(
        "console",
        description="how a process logs to its standard error: for people, or one JSON object a line",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged; libraries below `warning` only with `debug`"
    )
    metrics_host: str = Field("127.0.0.1", description="address of /metrics, /livez and /readyz")


@dataclass(frozen=True)
class Problem:
    """A variable of the environment, its problem and the remedy."""

    setting: str
    problem: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}"


def find_problems(kinds: Sequence[type[BaseSettings]]) -> list[Problem]:
    """Build each kind of settings from the environment and give all that is wrong, unknown names included."""
    problems = unknown_names(kinds)
    for kind in kinds:
        try:
            kind()
        except UNREADABLE as error:
            problems += explain(error, [kind])
    return problems


def explain(error: Exception, kinds: Sequence[type[BaseSettings]]) -> list[Problem]:
    """Give one problem for each wrong variable of an UNREADABLE that one of the kinds raised."""
    if not isinstance(error, ValidationError):
        field = str(error).split('"')[1]
        kind = next(kind for kind in kinds if field in kind.model_fields)
        return [Problem(_variable(kind, field), f"not the JSON that it must be: {error.__cause__}")]
    kind = next(kind for kind in kinds if kind.__name__ == error.title)
    problems = []
    for problem in error.errors(include_url=False, include_input=False):
        # A secret may be among the values and the names that are not ours, so none is shown.
        message = problem["msg"].removeprefix("Value error, ")
        field, *inside = map(str, problem["loc"] or ("…",))
        inside = inside[:-1] if problem["type"] == "extra_forbidden" else inside
        inside = [part for part in inside if re.fullmatch(r"[\w-]+", part)]
        about = kind.model_fields[field].description if field in kind.model_fields else None
        at = f"at {'.'.join(inside)}: " if inside else ""
        problems.append(Problem(_variable(kind, field), f"{at}{message}{f' ({about})' if about else ''}"))
    return problems


def unknown_names(kinds: Sequence[type[BaseSettings]]) -> list[Problem]:
    """Give each variable that is set and that no setting bears, with the nearest name that there is."""
    known = {_variable(kind, field) for kind in kinds for field in kind.model_fields}
    read = {str(kind.model_config["env_prefix"]) for kind in kinds}
    unread = tuple(prefix for room in ROOMS if (prefix := f"{PREFIX}{room}_") not in read)
    problems = []
    for name in sorted({name.upper() for name in os.environ}):
        if not name.startswith(PREFIX) or name in known or name.startswith(unread):
            continue
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
        advice = f"did you mean {near[0]}?" if near else "unset it"
        problems.append(Problem(name, f"there is no such setting; {advice}"))
    return problems


def _variable(kind: type[BaseSettings], field: str) -> str:
    return f"{kind.model_config['env_prefix']}{field.upper()}"


DONE, FAILED, WRONG_SETTING = 0, 1, 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger()

PROCESS = Gauge("forgewatch_process_info", "1, by name: detector, memory, updater or deploy", ["room"])


class WrongSettingError(Exception):
    """Fatal until a setting changes, which starting again does not do."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.problem = Problem(setting, problem)


class ProcessFailedError(Exception):
    """The process cannot start or go on; the text says in one line why. Starting it again may help."""


class Process:
    """The frame's services to the body of a process: the request to stop, and the heartbeat."""

    def __init__(self, settings: ProcessSettings, stopped: int = DONE) -> None:
        self.stop = threading.Event()
        self._stopped = stopped
        self.heartbeat = Heartbeat()
        self.metrics_host = settings.metrics_host
        self.starting = True
        self._told, self._tell = os.pipe()
        self._listener = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._listener.start()

    def report_started(self, **fields: object) -> None:
        """Log that the start is over. From here on a signal only sets `stop`, for the loop to look at."""
        self.starting = False
        log.info("started", **fields)

    def meet_signals(self) -> None:
        """From here on the first SIGTERM or SIGINT asks the process to stop, and a second one ends it."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def settle(self) -> None:
        """Wait until the work that a signal began is done."""
        if signal.getsignal(_SIGNALS[0]) == signal.SIG_DFL:  # one came
            self._listener.join()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # This runs between any two steps of the main thread, which may hold the lock of `stop` or of the
        # log just then: to take one of them here would be to wait for oneself.
        for handled in _SIGNALS:
            signal.signal(handled, signal.SIG_DFL)
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
    the start is met; calls `report_started` before its loop; beats in the loop, and leaves it once `stop`
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
    for problem in problems:
        log.critical("wrong setting", setting=problem.setting, problem=problem.problem)
    return WRONG_SETTING


def configure(room: str, settings: ProcessSettings) -> None:
    """Send this process's logs, and those of libraries by `logging`, to its standard error.

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
            colors=sys.stderr.isatty(), sort_keys=False, exception_formatter=structlog.dev.plain_traceback
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
