"""`forgewatch memory`: sources that leave it, and sources that it no longer takes."""

import sys
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.cli.output import (
    ActorOption,
    CommandError,
    JsonFlag,
    UsageError,
    client,
    print_json,
    print_table,
    say,
    short,
    show_list,
)
from deploy.records import PurgePreview

app = typer.Typer(help="Let sources leave the memory, and keep them out.")

Source = Annotated[str, typer.Option("--source", help="its exact name, as verdicts have it")]
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@app.command()
def purge(
    source: Source,
    block: Annotated[bool, typer.Option("--block", help="remember nothing of it from now on")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete everything of a source from the memory; lists first its data and the releases trained on it.

    Labels stay on record. Interrupted, the same command goes on.
    """
    with client(actor) as api:
        held = api.preview_purge(source)
        if not as_json:
            _show(held)
        if not held.exemplars and (held.blocked or not block):
            return print_json(held) if as_json else say("nothing of it is held")
        if not yes:
            if as_json or not sys.stdin.isatty():
                raise UsageError("--yes is needed where nobody can be asked")
            typer.confirm("purge it?", abort=True)
        done = api.purge(source, block=block, version=held.version)
        stopped, total = done.stopped, done.purged + done.left
        with Progress(*_COLUMNS, disable=as_json or not sys.stdout.isatty(), transient=True) as progress:
            task = progress.add_task("purge", total=total, completed=done.purged)
            while done.left:
                done = api.purge(source)
                if not done.purged:
                    raise CommandError(f"{done.left} items of it are left: run the same command again")
                progress.update(task, advance=done.purged)
    if as_json:
        return print_json({"purged": total, "stopped": stopped})
    for run in stopped:
        say(f"update {run} was stopped")
    say(f"{total} items of {source!r} were purged{', and it is blocked' if block else ''}")


@app.command()
def blocked(as_json: JsonFlag = False) -> None:
    """List the sources that are no longer remembered."""
    with client() as api:
        show_list(api.blocked_sources(), as_json, "blocked sources", source="source", since="at", by="actor")


@app.command()
def unblock(source: Source, actor: ActorOption = None) -> None:
    """Remember a source again, from now on."""
    with client(actor) as api:
        api.unblock(source)
    say(f"items of {source!r} are remembered again")


def _show(held: PurgePreview) -> None:
    rows = [[shelf, count] for shelf, count in sorted(held.exemplars.items())]
    print_table("its items in the memory", ["shelf", "items"], rows)
    if held.clusters:
        say(f"{held.clusters} clusters that wait show items of it")
    if held.releases:
        say(f"releases that learnt from it, and keep that: {', '.join(map(str, map(short, held.releases)))}")
    if held.unsaid:
        say(f"of {len(held.unsaid)} releases it is not known: they were made before there were snapshots")
    if held.updates:
        say(f"updates that will be stopped: {', '.join(map(str, held.updates))}")
