"""`forgewatch rollout`: the state of the release on trial, and a person's decisions about it."""

from typing import Annotated, Any

import typer

from deploy.cli.output import (
    ActorOption,
    CommandError,
    JsonFlag,
    client,
    print_json,
    print_table,
    say,
    short,
    show_list,
)
from deploy.release_records import Release
from deploy.rollout_records import OUTCOMES, Check, RolloutView, Trial

app = typer.Typer(help="Show the release on trial, hold it, label disagreements, waive a check.")

Reason = Annotated[str, typer.Option("--reason", help="why, for the record")]


@app.command()
def show(as_json: JsonFlag = False) -> None:
    """Show its steps, its checks, and the table of both verdicts on the same items."""
    with client() as api:
        view = api.rollouts.view()
    if as_json:
        return print_json(view)
    if view.trial is None:
        return say(view.says)
    _say_steps(view, view.trial)
    print_table(
        "checks (each interval holds at any time at 95 %)",
        ["check", "against", "for", "items", "units", "share", "from", "to", "tolerated", "state"],
        [[c.name, c.counted, c.counter or None, c.items, c.units, *_shares(c), c.state] for c in view.checks],
    )
    columns = sorted({called for others in view.table.values() for called in others})
    print_table(
        "the same items (rows: champion, columns: challenger)",
        ["", *columns],
        [[own, *(others.get(other, 0) for other in columns)] for own, others in view.table.items()],
    )


def _say_steps(view: RolloutView, trial: Trial) -> None:
    shared, answered = trial.shares
    where = "shadow" if not trial.step else f"canary, step {trial.step} of {len(trial.plan.canary)}"
    say(
        f"{short(trial.release)} against {short(trial.champion)}, plan {trial.plan}: {where}\n"
        f"both score {shared:.0%}, it answers {answered:.0%}; {view.shared} items so far\n{view.says}"
    )
    for role, recall in view.declared.items():
        say(f"{role}: media that declares generation, not called real by its pixels: {recall}, 95 % in each")
    for why, items in view.left_out.items():
        say(f"left out: {items} items, since {why}")
    for source, reason in trial.without.items():
        say(f"{source} is left out: {reason}")
    for check, reason in ((c.name, c.reason) for c in view.checks if c.reason):
        say(f"{check}: {reason}")
    for source, items in view.contradictions.items():
        say(f"labels that contradict both releases: {items} of {source}")
    if view.problem is not None:
        say(f"problem: {view.problem}")


@app.command()
def items(
    champion: Annotated[str, typer.Argument(help="the champion's label: real, unknown, error or a family")],
    challenger: Annotated[str, typer.Argument(help="the challenger's label")],
    as_json: JsonFlag = False,
) -> None:
    """List the newest shared items with these two labels of champion and challenger."""
    with client() as api:
        rows = api.rollouts.items(champion, challenger)
    title = f"champion {champion}, challenger {challenger}"
    columns: Any = {"contradicts": lambda item: "both" if item.contradicts else None}
    show_list(rows, as_json, title, item="id", source="source", called="label", **columns)


@app.command()
def label(
    what: Annotated[str, typer.Argument(help="real, or a family")],
    item: Annotated[list[str], typer.Argument(help="ids of shared items")],
    actor: ActorOption = None,
) -> None:
    """Label shared items on which the releases differ."""
    with client(actor) as api:
        _print_state(api.rollouts.judge(_trial(api.rollouts.view()).release, dict.fromkeys(item, what)))


@app.command()
def hold(reason: Reason, actor: ActorOption = None) -> None:
    """Hold it at its step."""
    _turn("hold", reason, actor)


@app.command()
def resume(reason: Reason, actor: ActorOption = None) -> None:
    """Resume it."""
    _turn("resume", reason, actor)


@app.command()
def back(reason: Reason, actor: ActorOption = None) -> None:
    """Return it to shadow: its verdicts are no longer published."""
    _turn("back to shadow", reason, actor)


@app.command()
def extend(reason: Reason, actor: ActorOption = None) -> None:
    """Give an inconclusive one more time, which may be done once."""
    _turn("extend", reason, actor)


@app.command()
def waive(
    check: Annotated[str, typer.Argument(help="the check's name, as `forgewatch rollout show` has it")],
    reason: Reason,
    actor: ActorOption = None,
) -> None:
    """Waive a check. The requester of the release cannot."""
    with client(actor) as api:
        _print_state(api.rollouts.waive(_trial(api.rollouts.view()).release, check, reason))


@app.command()
def leave_out(
    source: Annotated[str, typer.Argument(help="its name, or `new names`: all that have no history")],
    reason: Reason,
    actor: ActorOption = None,
) -> None:
    """Exclude a source from the checks. The requester of the release cannot."""
    with client(actor) as api:
        _print_state(api.rollouts.waive(_trial(api.rollouts.view()).release, source, reason, of_source=True))


def retractions(as_json: JsonFlag = False) -> None:
    """Show retractions of releases' verdicts, their progress and their outcomes."""
    with client() as api:
        views = api.rollouts.retractions()
    if as_json:
        return print_json(views)
    rows = []
    for view in views:
        counts = map(view.outcomes.get, OUTCOMES)
        rows.append([short(view.release), f"{view.began:%Y-%m-%d %H:%M}", *counts, view.left, view.state])
    print_table("retractions", ["release", "began", *OUTCOMES, "left", "state"], rows)
    for view in views:
        if view.state != "done":
            say(f"{short(view.release)}: {view.problem or view.says}")


def _turn(action: str, reason: str, actor: str | None) -> None:
    with client(actor) as api:
        _print_state(api.rollouts.turn(_trial(api.rollouts.view()).release, action, reason))


def _trial(view: RolloutView) -> Trial:
    if view.trial is None:
        raise CommandError("no release is on trial: `forgewatch approve` begins a rollout")
    return view.trial


def _print_state(done: Release) -> None:
    say(f"{short(done.digest)} is in {done.state} (ledger #{done.sequence}, by {done.actor})")


def _shares(check: Check) -> list[str | None]:
    shares = (check.share, check.low, check.high, check.tolerated)
    return [None if share is None else f"{share:.2%}" for share in shares]
