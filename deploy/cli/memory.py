"""Commands about the memory: import, clusters, contact sheets, labels, updates."""

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, get_args

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
    show_result,
    warn,
)
from deploy.client.connection import ServerUnavailableError
from deploy.client.http import Client
from deploy.records import LabelRequest
from memory.records import ClusterSummary, SameBytes, ShiftAlarm, Split, is_cluster_id
from updater.records import Outlook, UpdateRun

SourceOption = Annotated[
    str | None,
    typer.Option(help="where they come from, as the stream says it; without it import: and DIR's name"),
]
_FOLLOW_INTERVAL_S = 0.5
_SHOWN = 10
"""sources, and reasons why files are left out"""
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def clusters(as_json: JsonFlag = False) -> None:
    """List the clusters of unknowns that wait for a person."""
    with client() as api:
        fresh = api.clustering()
        rows = api.clusters()
    if as_json:
        return print_json(rows)
    at = "never computed" if fresh.computed_at is None else f"computed at {fresh.computed_at:%H:%M:%S} UTC"
    print_table(
        f"clusters of unknowns, {at}",
        ["cluster", "items", "sources", "resembles", "spread", "most typical"],
        ([f"{c.id}@{c.version}", c.size, c.sources, _kind(c), c.spread, c.medoid] for c in rows),
    )
    for row in rows:
        if row.alarm is not None:
            say(f"{row.id}: {_alarm_line(row.alarm)}")
        if row.declared is not None:
            command = f"forgewatch label {row.id}@{row.version} {row.declared.family} --declared"
            say(f"{row.id}: {row.declaration}; a claim, to agree to it: {command}")
    if fresh.newer:
        say(f"{fresh.newer} unknowns came since; the memory clusters them in a moment: list again")
    if rows:
        say("look at one: forgewatch sheet CLUSTER -o sheet.png; name it: forgewatch label CLUSTER FAMILY")


def misses(as_json: JsonFlag = False) -> None:
    """List items that were missed by the model and are declared by the file, to label by their ids."""
    with client() as api:
        items = api.misses()
    title = "missed by the model, declared by the file"
    show_list(items, as_json, title, item="id", source="source", declares="declares", generator="generator")


def sheet(
    cluster: Annotated[str, typer.Argument(help="a cluster's id")],
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG file to write")],
) -> None:
    """Write a cluster's contact sheet as a PNG."""
    with client() as api:
        png = api.sheet(cluster.partition("@")[0])
    output.write_bytes(png)
    say(f"{output}: {len(png)} bytes")


def label(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="CLUSTER|ID… FAMILY|real|ignore",
            help="one cluster as it was listed (ID@VERSION), or exemplars by id; then the name",
        ),
    ],
    same_bytes: Annotated[
        SameBytes,
        typer.Option(help="of items whose very bytes are called another class: keep that, or relabel those"),
    ] = "refuse",
    declared: Annotated[
        bool, typer.Option("--declared", help="of the cluster, only items that declare generation")
    ] = False,
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Call a cluster, or exemplars by id, a family, `real` or `ignore`."""
    if len(what) < 2:
        raise typer.BadParameter("give a cluster or exemplar ids, and then the name")
    *items, family = what
    cluster, _, version = items[0].partition("@")
    if len(items) > 1 and any(is_cluster_id(item.partition("@")[0]) for item in items):
        raise typer.BadParameter("label one cluster at a time, or exemplars by id")
    if declared and not is_cluster_id(cluster):
        raise typer.BadParameter("--declared goes with a cluster")
    with client(actor) as api:
        which: dict[str, Any] = {"ids": items}
        if is_cluster_id(cluster):
            seen = version or _version_now(api, cluster, family, "those that declare it" * declared)
            which = {"cluster": cluster, "version": seen, "declared": declared}
        done = api.label(LabelRequest(family=family, same_bytes=same_bytes, **which))
    line = f"label {done.label}: {done.exemplars} called {family}"
    show_result(done, as_json, f"{line}; `forgewatch undo {done.label}` takes it back")
    for contradiction in () if as_json else done.contradicted:
        warn(contradiction)


def _version_now(api: Client, cluster: str, family: str, some: str) -> str:
    """Return the state of a cluster that a person at the terminal agrees to."""
    now = next((c for c in api.clusters() if c.id == cluster), None)
    if now is None:
        raise CommandError(f"cluster {cluster} is not in the list: forgewatch clusters")
    if not sys.stdin.isatty():
        raise UsageError(f"say which state you saw, such as {cluster}@{now.version}: forgewatch clusters")
    question = f"Cluster {cluster} holds {now.size} items now. Call {some or 'all of them'} {family}?"
    typer.confirm(question, abort=True)
    return now.version


def undo(
    number: Annotated[int, typer.Argument(metavar="LABEL", help="a label's number")],
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Undo a label: its exemplars return to their earlier label."""
    with client(actor) as api:
        done = api.undo(number)
    line = f"label {number} is undone ({done.exemplars} exemplars; on record as {done.label})"
    show_result(done, as_json, line)


def labels(as_json: JsonFlag = False) -> None:
    """List labels and undos with their authors, the newest first."""
    with client() as api:
        columns: Any = {"label": "label", "at": "at", "by": "actor"}
        columns |= {"what": lambda e: e.what or f"undo of {e.undoes}"}
        show_list(api.labels(), as_json, "labels", **columns, exemplars="exemplars", undone_by="undone_by")


def update(
    follow: Annotated[bool, typer.Option("--follow", help="show progress until it ends")] = False,
    cancel: Annotated[int | None, typer.Option(help="end this update instead, with --reason")] = None,
    reason: Annotated[str, typer.Option(help="why it is cancelled, for the record")] = "",
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask for an update now: train a candidate and propose it, with findings where a gate does not hold.

    First prints the data it will train on, and the families that it will and will not know. --cancel ends a
    waiting or running update: its requester and every approver may.
    """
    if (cancel is None) != (not reason.strip()):
        raise UsageError("--cancel UPDATE and --reason WHY go together")
    with client(actor) as api:
        if cancel is not None:
            run = api.cancel_update(cancel, reason)
            return show_result(run, as_json, f"update {run.id} is {run.state}: {run.error}")
        if not as_json:
            show_outlook(api.outlook())
        run = api.request_update()
        if follow:
            run = follow_update(api, run, quiet=as_json)
    if as_json:
        print_json(run)
    elif run.candidate is not None:
        findings = f" with findings ({run.error})" if run.error else ""
        say(
            f"update {run.id} proposes {short(run.candidate)}{findings}; "
            f"see its evidence: forgewatch release {short(run.candidate)}"
        )
    elif not follow:
        say(f"update {run.id} is {run.state}; `forgewatch status` shows how it goes")
    if run.state in ("refused", "failed"):
        raise CommandError(f"update {run.id} {run.state}: {run.error}")


def show_outlook(outlook: Outlook) -> None:
    """Print what an update will rest on: groups of reals by source and split, and what follows from them."""
    sources = sorted(outlook.real_groups.items(), key=lambda pair: -sum(pair[1].values()))
    print_table(
        "groups of real items that the update has",
        ["source", "to train", "to calibrate", "to test"],
        [[name, *(of.get(split, 0) for split in get_args(Split))] for name, of in sources[:_SHOWN]],
    )
    if len(sources) > _SHOWN:
        say(f"and {len(sources) - _SHOWN} sources with fewer")
    for sentence in outlook.told:
        say(sentence)


def import_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="DIR/FAMILY/[GROUP/]FILE; the folder `real` holds reals")
    ],
    layout: Annotated[
        str | None,
        typer.Option(help="DIR is a published set: cddb, deepfakebench, dfdc, faceforensics or forgerynet"),
    ] = None,
    source: SourceOption = None,
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take labelled folders into the memory, one folder a family and one of reals; or a published set."""
    from deploy.client.importing import import_folder

    files, notes = (None, ()) if layout is None else _laid_out(layout, folder)

    with (
        client(actor) as api,
        Progress(*_COLUMNS, disable=as_json or not sys.stdout.isatty(), transient=True) as progress,
    ):
        task = progress.add_task(f"import {folder.name}", total=None)
        try:
            done = import_folder(
                folder, api, lambda at, of: progress.update(task, completed=at, total=of), files, source
            )
        except ServerUnavailableError as error:
            raise CommandError(f"{error} (run the same command again to go on)") from error
        except (KeyboardInterrupt, SystemExit):
            if not as_json:
                say("the files imported so far stay: run the same command again to go on")
            raise
    if as_json:
        print_json(done)
    else:
        rows = [[name, count, done.labels.get(name)] for name, count in sorted(done.new.items())]
        print_table("imported", ["class", "new files", "label"], rows)
        if done.already:
            say(f"{done.already} files were in the memory already")
        for note in notes:
            warn(f"left out: {note}")
        first = {file.reason: file.path for file in reversed(done.skipped)}
        reasons = Counter(file.reason for file in done.skipped)
        for reason, count in reasons.most_common(_SHOWN):
            warn(f"left out: {first[reason]}{f' and {count - 1} more' if count > 1 else ''}: {reason}")
        if len(reasons) > _SHOWN:
            warn(f"{len(reasons) - _SHOWN} more reasons: the same command with --json lists every file")
        for line in done.contradicted:
            warn(line)
    if done.skipped and not done.new and not done.already:
        raise CommandError(f"none of the {len(done.skipped)} files below {folder} could be imported")


def _laid_out(layout: str, folder: Path) -> tuple[list[tuple[str, Path]], tuple[str, ...]]:
    from updater.data.layouts.entries import DataError
    from updater.data.layouts.layouts import LAYOUTS, labelled_files

    if layout not in LAYOUTS:
        raise UsageError(f"--layout {layout} is none: choose of {', '.join(LAYOUTS)}")
    try:
        return labelled_files(layout, folder)
    except DataError as error:
        raise CommandError(str(error)) from error


def _kind(cluster: ClusterSummary) -> str | None:
    if cluster.alarm is not None:
        return "called real, shifted"
    return "unclustered" if cluster.unclustered else cluster.resembles


def _alarm_line(alarm: ShiftAlarm) -> str:
    """Say an alarm in one line."""
    apart = "" if alarm.cohesion is None else f"; as one kind, p = {alarm.cohesion:.3f}"
    return (
        f"suspects; some may be real: {alarm.source} has shifted in its last {alarm.since} items "
        f"called real (evidence e^{alarm.log_e:.1f}, an alarm from e^{alarm.log_limit:.1f}{apart})"
    )


def follow_update(api: Client, run: UpdateRun, *, quiet: bool = False) -> UpdateRun:
    """Follow a run to its end: a bar for each stage, or a line where nobody watches a terminal."""
    with Progress(*_COLUMNS, disable=quiet) as progress:
        lines = not (quiet or progress.console.is_terminal)
        stage, total, task = "queued", 1, progress.add_task(f"update {run.id}: queued", total=None)
        while run.state in ("queued", "running"):
            time.sleep(_FOLLOW_INTERVAL_S)
            run = api.update(run.id)
            if run.stage and run.stage != stage:
                progress.update(task, completed=total, total=total)
                stage, task = run.stage, progress.add_task(f"update {run.id}: {run.stage}", total=None)
                if lines:
                    say(f"update {run.id}: {stage}")
            total = run.total or 1
            progress.update(task, completed=run.done, total=run.total or None)
        progress.update(task, completed=total, total=total)
    return run
