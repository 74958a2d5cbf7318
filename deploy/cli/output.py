"""How the command line speaks: tables for people, JSON for programs, one line for an error."""

import getpass
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import reduce
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from deploy.client.http import Client
from deploy.settings import DeploySettings
from updater.progress import Progress
from updater.terminal import print_grid

JsonFlag = Annotated[bool, typer.Option("--json", help="print JSON instead of tables")]
ActorOption = Annotated[str | None, typer.Option("--as", help="who does this, where no token says so")]


class CommandError(Exception):
    """A command cannot be carried out; its text is the one line that the person reads."""


class UsageError(CommandError):
    """An option was given what it never takes: the command is wrong, whatever the state of things."""


def writable(path: Path | None) -> None:
    """Make a file's folder. Raises CommandError, or OSError, where the file cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise CommandError(f"{path} is a folder: name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise CommandError(f"{path} lies in a file: name one in a folder") from error
    with TemporaryFile(dir=path.parent):
        pass


def client(actor: str | None = None) -> Client:
    """A connection to the settings' deploy server, in the token's name, or somebody's where there is none.

    Raises UsageError where both name somebody.
    """
    settings = DeploySettings()
    if settings.token is None:
        return Client(settings, actor or login())
    if actor is not None:
        raise UsageError(f"--as {actor}: FORGEWATCH_DEPLOY_TOKEN says who acts; leave one of them out")
    return Client(settings, "")


def print_json(value: object) -> None:
    """Print one JSON document on one line; pydantic models and lists of them included."""
    document = json.dumps(to_jsonable_python(value), ensure_ascii=False)
    # Half a surrogate, of a file's name that is no UTF-8, is written as JSON's escape.
    sys.stdout.write(document.encode(errors="backslashreplace").decode() + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; says so where it is empty."""
    if cells := [[safe(cell) for cell in row] for row in rows]:
        print_grid(Console(), title, columns, cells)
    else:
        say(f"{title}: none")


def print_rows(title: str, items: Iterable[object], **columns: str | Callable[[Any], object]) -> None:
    """Print a table with a row for each item; a column is a dotted attribute of it, or what a function gives.

    The underscores of a column's name are shown as spaces.
    """
    rows = ([_cell(item, column) for column in columns.values()] for item in items)
    print_table(title, [name.replace("_", " ").strip() for name in columns], rows)


def _cell(item: Any, column: str | Callable[[Any], object]) -> object:
    if callable(column):
        return column(item)
    return reduce(lambda at, name: None if at is None else getattr(at, name), column.split("."), item)


def show_list(items: Iterable[object], as_json: bool, title: str, **columns: Any) -> None:
    """Print items as JSON, or as a table (see `print_rows`)."""
    print_json(items) if as_json else print_rows(title, items, **columns)


def show_result(result: object, as_json: bool, line: str) -> None:
    """Print a result as JSON, or the line that says it."""
    print_json(result) if as_json else say(line)


def say(line: str) -> None:
    """Print one line on standard output."""
    Console(soft_wrap=True).print(safe(line))


def warn(line: str) -> None:
    """Print one line on standard error."""
    Console(stderr=True, soft_wrap=True).print(safe(line))


def safe(value: object) -> Text:
    """Text as it is to be read: no markup, and no control character of a hostile file name."""
    match value:
        case None:
            text = "-"
        case float():
            text = f"{value:.3f}"
        case datetime():
            text = f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
        case _:
            text = str(value)
    return Text("".join(c if c.isprintable() or c == "\n" else "�" for c in text))


def short(digest: str | None) -> str | None:
    """A digest's first twelve digits, by which tables and TorchServe name a release."""
    return digest[:12] if digest else None


def login() -> str:
    """The login name of this user; raises CommandError where there is none."""
    with suppress(OSError, KeyError, ImportError):  # a container's user may have no name
        return getpass.getuser()
    raise CommandError("this user has no login name: say who you are with --as")


@contextmanager
def progress_bar(*, hidden: bool) -> Iterator[Progress]:
    """Show one bar on standard error; yields its update function (stage, done, total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, transient=True, disable=hidden, console=Console(stderr=True)) as bars:
        bar = bars.add_task("start", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bars.update(bar, description=stage, completed=done, total=total or None)

        yield show
