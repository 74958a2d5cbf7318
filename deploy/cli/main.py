"""The command `forgewatch`: every command's name, and how every error ends as one line."""

import logging
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from multiprocessing import parent_process
from types import FrameType
from typing import Annotated

import structlog
import typer

from deploy.cli import (
    accuracy,
    benchmark,
    dead_letters,
    distortions,
    experts,
    label_studio,
    lineage,
    memory,
    newcomer,
    notices,
    record,
    releases,
    rollouts,
    sources,
    stack,
    stream,
    tokens,
)
from deploy.cli.output import say, warn
from deploy.environment import load_stack_environment

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Forgewatch: a streaming deployment monitor for media forgery, which learns while it runs.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"forgewatch {version('forgewatch')}")
        raise typer.Exit


@app.callback()
def of_the_program(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Take the options that come before any command."""


# What a shell reports after Ctrl-C, and what typer returns then without a word.
_STOPPED = 130
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_PANELS = {
    "The stack": (stack.up, stack.down, stack.topics, stack.migrate, stack.demo, stack.throughput),
    "Look": (stack.status, stack.doctor, stream.verdicts, lineage.lineage, accuracy.accuracy),
    "Media": (stream.send, stream.score),
    "The memory": (
        memory.clusters,
        memory.misses,
        memory.sheet,
        memory.label,
        memory.undo,
        memory.labels,
        accuracy.audit,
    ),
    "Releases": (
        memory.update,
        releases.releases,
        releases.approve,
        releases.promote,
        releases.reject,
        releases.rollback,
        rollouts.retractions,
    ),
    "Research": (distortions.distort,),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(benchmark.app, rich_help_panel="Research")
app.add_typer(label_studio.app, name="label-studio", rich_help_panel="The memory")
app.add_typer(sources.app, name="memory", rich_help_panel="The memory")
app.add_typer(releases.app, name="release", rich_help_panel="Releases")
app.add_typer(rollouts.app, name="rollout", rich_help_panel="Releases")
app.add_typer(experts.app, rich_help_panel="Releases")
app.add_typer(dead_letters.app, name="dlq", rich_help_panel="Media")
app.add_typer(dead_letters.app, name="dead-letters", hidden=True)
app.add_typer(tokens.app, name="token", rich_help_panel="Look")
app.add_typer(record.app, name="record", rich_help_panel="Look")
app.add_typer(notices.app, name="notices", rich_help_panel="Look")
# `import` and `try` are words of Python, so the functions are called otherwise.
app.command("import", rich_help_panel="The memory")(memory.import_)
app.command("try", rich_help_panel="The stack")(newcomer.try_)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 for a failure, 2 for a wrong command or setting."""
    command = typer.main.get_command(app)
    # What a command does is said by the command; the log is for processes.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for kind in _ENDS:
        if signal.getsignal(kind) in (signal.SIG_DFL, signal.default_int_handler):  # nohup has SIGHUP ignored
            signal.signal(kind, _unwind)
    try:
        load_stack_environment()
        given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        code = command.main(given, "forgewatch", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt) as ended:
        # A question that is not confirmed aborts by itself; an interrupt is the cause of all else.
        question = isinstance(ended, typer.Abort) and ended.__cause__ is None
        return _fail("not confirmed" if question else "stopped", code=_STOPPED)
    except SystemExit as ended:
        return _fail("stopped", code=int(ended.code or 0))
    except BrokenPipeError:
        return 0  # the reader of our output has seen enough
    except Exception as error:
        # Only now: a command that works does not wait for what can go wrong elsewhere.
        from deploy.cli.complaints import format_error

        refusal = format_error(error)
        if refusal is None:
            raise
        code, lines, before = refusal
        for line in before:
            warn(line)
        return _fail(*lines, code=code)
    if code == _STOPPED:
        return _fail("stopped", code=_STOPPED)
    return int(code or 0)


def _unwind(number: int, _frame: FrameType | None) -> None:
    """End what is under way, so that nothing half-started stays; a second signal would cut that short."""
    if parent_process() is None:
        for kind in _ENDS:
            signal.signal(kind, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _fail(*lines: str, code: int) -> int:
    for line in lines:
        warn(f"forgewatch: {' '.join(line.split())}")
    return code
