"""How far work is: one type for workers and for displays."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from ingest.process.frame import ProcessSettings

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total); total is 0 where it is not known."""
Steps = Callable[[int, int], None]
"""Progress whose stage is given, as by `functools.partial(progress, stage)`: called with (done, total)."""

log = structlog.get_logger()


def no_progress(stage: str, done: int, total: int) -> None:
    """Progress that nobody follows."""


def no_steps(done: int, total: int) -> None:
    """Steps that nobody follows."""


def with_prefix(progress: Progress, prefix: str) -> Progress:
    """Return the progress of a part: its stages are called `PREFIX: STAGE`."""
    return lambda stage, done, total: progress(f"{prefix}: {stage}", done, total)


@contextmanager
def terminal() -> Iterator[Progress]:
    """Yield the display of the progress: a bar where a person watches, else one log line a stage."""
    if not sys.stderr.isatty() or ProcessSettings().log_format == "json":
        yield _log_stages()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield show


def _log_stages() -> Progress:
    newest = ""

    def show(stage: str, done: int, total: int) -> None:
        nonlocal newest
        if stage != newest:
            newest = stage
            log.info("update stage", stage=stage, steps=total)

    return show
