"""Commands about a stack as a whole: start and stop it, look at it, measure it.

Modules that load torch or a database are imported only when a command needs them.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn

from deploy.cli.output import (
    CommandError,
    JsonFlag,
    UsageError,
    client,
    print_json,
    print_rows,
    print_table,
    say,
    short,
    writable,
)
from deploy.client.connection import ClientError
from deploy.client.prometheus import Alert, PrometheusError, firing_alerts
from deploy.local.processes import StackError
from deploy.local.record import kept_alive
from deploy.local.supervisor import ProcessStatus
from deploy.records import ProcessHealth, Status
from deploy.release_records import Release
from deploy.settings import DeploySettings

Report = Annotated[Path | None, typer.Option("--report", help="write the results there as JSON")]


def up(empty: Annotated[bool, typer.Option("--empty", help="without the shipped release")] = False) -> None:
    """Start broker, TorchServe, detector, memory, updater and server here, and leave them running."""
    from deploy.local import commands

    if empty:
        return commands.up()
    from deploy.demo.operator import OperatorError
    from deploy.demo.release_zero import up as up_with_release

    try:
        up_with_release()
    except OperatorError as error:
        raise CommandError(f"the stack runs, but without a release: {error}") from error


def topics(
    partitions: Annotated[int, typer.Option(min=1, help="of media and all that follows from it")] = 4,
    replication: Annotated[int, typer.Option(min=1, help="copies of each partition")] = 1,
) -> None:
    """Create missing topics on the broker, and report wrong settings of existing ones."""
    from kafka.errors import KafkaError

    from deploy.layouts import all_topics, examine_topics
    from ingest.kafka.access import REQUEST_TIMEOUT_S, auth_problem, kafka_options
    from ingest.kafka.topics import ensure_topics
    from ingest.settings import IngestSettings

    ingest = IngestSettings()
    if problem := auth_problem(kafka_options(ingest), REQUEST_TIMEOUT_S):
        raise CommandError(f"{problem}; start a broker, or see the FORGEWATCH_INGEST_… settings")
    wanted = all_topics(ingest, partitions)
    created = ensure_topics(ingest, wanted, replication)
    say(f"created: {', '.join(created)}" if created else "every topic is there already")
    try:
        examined = examine_topics(ingest, int(REQUEST_TIMEOUT_S * 1000))
    except KafkaError as error:
        return say(f"how they are set is not known: {error}")
    for wrong, advice in examined.problems:
        say(f"{wrong}; {advice}")
    if examined.note:
        say(examined.note.removeprefix("; "))


def migrate() -> None:
    """Bring the tables of memory, updater and deploy to today's layout. It may be run again at any time."""
    from deploy.layouts import migrate_all
    from ingest.process.frame import WrongSettingError

    try:
        for done in migrate_all():
            say(done)
    except WrongSettingError as error:
        raise UsageError(str(error)) from error


def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="delete its topics, memory and releases, too; asks before")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="ask nothing")] = False,
) -> None:
    """Stop the stack that runs here. Its data stays, and `forgewatch up` continues with it."""
    from deploy.local import commands

    if purge and not yes:
        typer.confirm("Delete the topics, the memory and the releases of this stack for good?", abort=True)
    commands.down(purge=purge)


def demo(
    seed: Annotated[int, typer.Option(min=0, help="seed of all that is random")] = 0,
    unseen: Annotated[
        str | None, typer.Option(help="the forgery family that release 0 never saw; else the default one")
    ] = None,
    report: Report = None,
) -> None:
    """Run the whole loop from training to hot swap, with a table of counts at the end."""
    from deploy.demo import run
    from deploy.demo.operator import StoryError

    writable(report)
    try:
        holds = run.main(seed, unseen, report)
    except StoryError as error:
        raise UsageError(str(error)) from error
    if not holds:
        raise CommandError("not every claim holds; the table above says which")


def throughput(report: Report = None) -> None:
    """Measure images per second from topic to committed verdict against the same model in a bare loop."""
    from deploy.bench import throughput as measurement

    writable(report)
    measurement.main(report)


def status(as_json: JsonFlag = False) -> None:
    """Show the live release, waiting decisions, consumer lag and processes."""
    kept = _own_processes()
    try:
        with client() as api:
            status_ = api.status()
    except ClientError:
        # What of the stack is down, and why, is then most wanted.
        if not as_json:
            _show_kept(kept)
        raise
    if as_json:
        return print_json({**status_.model_dump(mode="json"), "kept_alive": kept, "alerts": _alerts()})
    _headline(status_)
    columns: Any = {"behind": "lag", "of_these_in_an_open_transaction": lambda p: p.held_back or ""}
    print_rows("lag", status_.lag, group="group", topic="topic", partition="partition", **columns)
    if status_.lag_problem:
        say(f"lag is not known: {status_.lag_problem}\n")
    print_rows("memory", status_.shelves, shelf="shelf", family="family", exemplars="count")
    columns = {"done": lambda u: f"{u.done}/{u.total}" if u.total else "", "asked_by": "requested_by"}
    columns |= {"at": "requested_at", "why": "error"}
    states = {r.digest: r.state for r in (status_.live, *status_.proposed) if r is not None}
    # Once the release of an update has moved on, "proposed" is not true any more.
    state = {"state": lambda u: states.get(u.candidate, "ended") if u.candidate else u.state}
    print_rows("updates", status_.updates, update="id", **state, stage="stage", **columns)
    if status_.due:
        say(f"next updates are due at {', '.join(f'{due:%Y-%m-%d %H:%M %Z}' for due in status_.due)}\n")
    columns = {"address": "address", "problem": "problem"}
    print_rows("processes", status_.processes, process="name", state=_state, **columns)
    _show_kept(kept)
    _show_alerts(_alerts())


def doctor(as_json: JsonFlag = False) -> None:
    """Diagnose a stack, and say how to mend it. Exit code 1 if anything is."""
    from deploy.doctor.diagnosis import CHECKS, examine

    findings = []
    with Progress(SpinnerColumn(), "{task.description}", transient=True, disable=as_json) as progress:
        task = progress.add_task("looking", total=None)
        for name in CHECKS:
            progress.update(task, description=name)
            findings.append(examine(name))
    if as_json:
        print_json(findings)
    else:
        rows = [[f.check, f.verdict, f.found, f.advice] for f in findings]
        print_table("doctor", ["check", "", "result", "remedy"], rows)
    if wrong := [f.check for f in findings if not f.ok]:
        raise CommandError(f"{len(wrong)} of {len(findings)} checks failed: {', '.join(wrong)}")


def _own_processes() -> list[ProcessStatus] | str:
    """The processes of this folder's own stack, none where it has none, or why they are not known."""
    try:
        return kept_alive()
    except StackError as error:
        return str(error).partition("\n")[0]


def _alerts() -> list[Alert] | str | None:
    """Firing alerts, or the reason why they are not known; None: there is no Prometheus."""
    url = DeploySettings().prometheus_url
    try:
        return None if url is None else firing_alerts(url)
    except PrometheusError as error:
        return str(error)


def _show_alerts(alerts: list[Alert] | str | None) -> None:
    if isinstance(alerts, str):
        say(f"the firing alerts are not known: {alerts}")
    elif alerts:
        columns = {"what": "description", "what_to_do": "runbook_url"}
        print_rows("alerts that fire", alerts, alert="name", severity="severity", **columns)


def _show_kept(kept: list[ProcessStatus] | str) -> None:
    if isinstance(kept, str):
        say(f"the supervised processes are not known: {kept}")
    elif kept:
        names = {name: name for name in ("state", "since", "restarts", "last_end", "why")}
        print_rows("supervised processes", kept, process="name", **names)


def _waiting(release: Release) -> str:
    names = ", ".join(gate.name for gate in release.candidate.findings)
    if release.state == "approved":
        return f"{short(release.digest)} (approved by {release.actor}, not live)"
    return f"{short(release.digest)}{f' (with findings: {names})' if names else ''}"


def _state(process: ProcessHealth) -> str:
    if not process.alive:
        return "DOWN"
    return "NOT READY" if process.problem else "alive"


def _headline(status: Status) -> None:
    if status.live is None:
        say("live        none yet: propose a release (`forgewatch update`) and approve it")
    else:
        live, since = status.live, f"{status.live.since.astimezone():%Y-%m-%d %H:%M}"
        say(f"live        {short(live.digest)}  since {since} by {live.actor}")
        say(f"previous    {short(status.previous) or 'none'}")
    say(f"to approve  {', '.join(map(_waiting, status.proposed)) or 'none'}")
    say(f"unknowns    {status.unknowns_waiting} waiting for a person")
    say(f"signatures  {status.signatures}")
    for line in status.under_way:
        say(f"under way   {line}")
    if status.publish_problem:
        say(f"publishing  {status.publish_problem}")
    if status.record_problem:
        say(f"record      {status.record_problem}")
    for raised in status.epoch_raises:
        say(f"epoch       raised {raised.at.astimezone():%Y-%m-%d %H:%M}: {raised.reason}")
    say("")
