"""`forgewatch accuracy` and `forgewatch audit`: how accurate verdicts are, and labels that correct that."""

from typing import Annotated

import typer

from deploy.cli.output import ActorOption, JsonFlag, UsageError, client, print_json, print_table, say, short
from memory.estimate.records import KEPT_DAYS, Estimate


def accuracy(
    days: Annotated[int, typer.Option(min=1, max=KEPT_DAYS, help="today and the days before; UTC")] = 7,
    release: Annotated[str | None, typer.Option(help="its digest or a beginning; else the live one")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate the share of right verdicts by class and source, by the audit, with 95 % intervals."""
    with client() as api:
        found = api.accuracy.report(days, release and api.full_digest(release))
    if as_json:
        return print_json(found)
    told = found.accuracy
    print_table(
        f"{short(told.release)}: share of the verdicts whose class is right, since {told.since:%Y-%m-%d}",
        ["", "verdicts", "right", "audited", "cannot say"],
        [
            _row("over all", told.over_all),
            *(_row(f"said {name}", each) for name, each in told.classes.items()),
            *(_row(f"from {name or 'further sources'}", each) for name, each in told.sources.items()),
        ],
    )
    say(f"{told.unknown} more are unknown, which is neither right nor wrong")
    if told.through is not None:
        say(
            f"the audit speaks for the days that ended by {told.through:%Y-%m-%d}: later ones wait for labels"
        )
    if power := found.power:
        say(
            f"of forgeries of a family never seen, {power.share:.0%} ({power.low:.0%} to {power.high:.0%})"
            " would not be called real, as the release measured; no estimate knows those"
        )
    else:
        say("how many forgeries of unseen families pass, no estimate knows; the release did not measure")


def audit(
    item: Annotated[
        str | None, typer.Argument(help="id of a drawn item; without it, list the items that wait")
    ] = None,
    label: Annotated[str | None, typer.Argument(help="real, a family, or cannot-say")] = None,
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the verdicts that were drawn for the audit, or say what one of their items is."""
    if item is None:
        with client(actor) as api:
            waiting = api.accuracy.waiting()
        if as_json:
            return print_json(waiting)
        rows = [[each.id, each.source, each.at] for each in waiting]
        return print_table("drawn for the audit", ["item", "source", "when"], rows)
    if label is None:
        raise UsageError("name its class: forgewatch audit ITEM real, a family, or cannot-say")
    with client(actor) as api:
        done = api.accuracy.audit(item, label)
    if as_json:
        return print_json(done)
    before = "" if done.instead_of is None else f" instead of {done.instead_of}"
    say(
        f"{done.id}: you say {done.label}{before},"
        f" {short(done.release)} said {done.called} ({done.probability:.0%} sure)"
    )


def _row(name: str, of: Estimate) -> list[object]:
    share = of.corrected
    told = of.not_known if share is None else f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})"
    return [name, of.items, told, of.audited, of.cannot_say]
