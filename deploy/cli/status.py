"""Commands about the system as a whole: status, doctor."""

from rich.progress import Progress, SpinnerColumn, TextColumn

from deploy.cli.output import (
    CommandError,
    JsonFlag,
    client,
    print_json,
    print_table,
    say,
    short,
)
from deploy.client.http import ClientError
from deploy.client.prometheus import Alert, PrometheusError, firing_alerts
from deploy.client.records import ProcessHealth, Status
from deploy.local.processes import StackError
from deploy.local.record import kept_alive
from deploy.local.supervisor import Kept
from deploy.settings import DeploySettings


def status(as_json: JsonFlag = False) -> None:
    """Show what is live, what waits for whom, how far each group is behind, who is alive."""
    kept = _kept()
    try:
        with client() as api:
            found = api.status()
    except ClientError:
        # What of the stack is down, and why, is then most wanted.
        if not as_json:
            _show_kept(kept)
        raise
    if as_json:
        return print_json({**found.model_dump(mode="json"), "kept_alive": kept, "alerts": _alerts()})
    _headline(found)
    print_table(
        "lag",
        ["group", "topic", "partition", "behind"],
        ([p.group, p.topic, p.partition, p.lag] for p in found.lag),
    )
    if found.lag_problem:
        say(f"lag is not known: {found.lag_problem}\n")
    print_table(
        "memory", ["shelf", "family", "exemplars"], ([s.shelf, s.family, s.count] for s in found.shelves)
    )
    print_table(
        "updates",
        ["update", "state", "stage", "done", "asked by", "at", "why"],
        (
            [
                u.id,
                u.state,
                u.stage,
                f"{u.done}/{u.total}" if u.total else "",
                u.requested_by,
                u.requested_at,
                u.error,
            ]
            for u in found.updates
        ),
    )
    print_table(
        "processes",
        ["process", "state", "address", "problem"],
        ([p.name, _state(p), p.address, p.problem] for p in found.processes),
    )
    _show_kept(kept)
    _show_alerts(_alerts())


def doctor(as_json: JsonFlag = False) -> None:
    """Look for what is wrong with a stack, and say what to do. Exit code 1 if anything is."""
    from deploy.doctor.diagnosis import CHECKS, examine

    found = []
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), transient=True, disable=as_json
    ) as progress:
        task = progress.add_task("looking", total=None)
        for name in CHECKS:
            progress.update(task, description=name)
            found.append(examine(name))
    if as_json:
        print_json(found)
    else:
        print_table(
            "doctor",
            ["check", "", "found", "what to do"],
            ([f.check, "ok" if f.ok else "WRONG", f.found, f.advice] for f in found),
        )
    if wrong := [f.check for f in found if not f.ok]:
        raise CommandError(f"{len(wrong)} of {len(found)} checks failed: {', '.join(wrong)}")


def _kept() -> list[Kept] | str:
    """The processes of this folder's own stack, none where it has none, or why they are not known."""
    try:
        return kept_alive()
    except StackError as error:
        return str(error).partition("\n")[0]


def _alerts() -> list[Alert] | str | None:
    """What fires, why that is not known, or None where there is no Prometheus."""
    url = DeploySettings().prometheus_url
    try:
        return None if url is None else firing_alerts(url)
    except PrometheusError as error:
        return str(error)


def _show_alerts(alerts: list[Alert] | str | None) -> None:
    if isinstance(alerts, str):
        say(f"what alerts fire is not known: {alerts}")
    elif alerts:
        print_table(
            "alerts that fire",
            ["alert", "severity", "what", "what to do"],
            ([a.name, a.severity, a.description, a.runbook_url] for a in alerts),
        )


def _show_kept(kept: list[Kept] | str) -> None:
    if isinstance(kept, str):
        say(f"what is kept alive here is not known: {kept}")
    elif kept:
        print_table(
            "kept alive here",
            ["process", "state", "since", "restarts", "last end", "why"],
            ([k.name, k.state, k.since, k.restarts, k.last_end, k.why] for k in kept),
        )


def _state(process: ProcessHealth) -> str:
    if not process.alive:
        return "DOWN"
    return "TROUBLED" if process.problem else "alive"


def _headline(found: Status) -> None:
    if found.live is None:
        say("live        none yet: propose a release (`forgewatch update`) and approve it")
    else:
        live = found.live
        say(
            f"live        {short(live.digest)}  "
            f"since {live.since.astimezone():%Y-%m-%d %H:%M} by {live.actor}"
        )
        say(f"previous    {short(found.previous) or 'none'}")
    say(f"to approve  {', '.join(short(r.digest) or '' for r in found.proposed) or 'none'}")
    say(f"unknowns    {found.unknowns_waiting} waiting for a person")
    if found.publish_problem:
        say(f"publishing  {found.publish_problem}")
    for raised in found.epoch_raises:
        say(f"epoch       raised {raised.at.astimezone():%Y-%m-%d %H:%M}: {raised.reason}")
    say("")
