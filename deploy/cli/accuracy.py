"""`forgewatch accuracy` and `forgewatch audit`: how accurate verdicts are, and labels that correct that."""

from typing import Annotated

import typer

from deploy.cli.output import (
    ActorOption,
    JsonFlag,
    UsageError,
    client,
    print_json,
    print_table,
    say,
    short,
    show_list,
    show_result,
)
from memory.estimate.records import KEPT_DAYS, Estimate


def accuracy(
    days: Annotated[int, typer.Option(min=1, max=KEPT_DAYS, help="today and the days before; UTC")] = 7,
    release: Annotated[str | None, typer.Option(help="its digest or a beginning; else the live one")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate the share of right verdicts by class and source, by the audit, with 95 % intervals."""
    with client() as api:
        report = api.accuracy.report(days, release and api.full_digest(release))
    if as_json:
        return print_json(report)
    rates = report.accuracy
    print_table(
        f"{short(rates.release)}: share of the verdicts whose class is right, since {rates.since:%Y-%m-%d}",
        ["", "verdicts", "right", "audited", "cannot say"],
        [
            _row("overall", rates.over_all),
            *(_row(f"predicted {name}", row) for name, row in rates.classes.items()),
            *(_row(f"from {name or 'further sources'}", row) for name, row in rates.sources.items()),
        ],
    )
    say(f"{rates.unknown} more are unknown, which is neither right nor wrong")
    if rates.through is not None:
        say(f"the audit covers the days that ended by {rates.through:%Y-%m-%d}: later ones wait for labels")
    if report.declared is not None:
        say(
            f"of media that declares generation, not called real by its pixels: {report.declared}, 95 % in"
            " either end; it is no random sample, and says nothing of forgeries that declare nothing"
        )
    if power := report.power:
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
    """List the items drawn for the quality sample, or label one of them."""
    if item is None:
        with client(actor) as api:
            waiting = api.accuracy.waiting()
        return show_list(waiting, as_json, "drawn for the audit", item="id", source="source", when="at")
    if label is None:
        raise UsageError("name its class: forgewatch audit ITEM real, a family, or cannot-say")
    with client(actor) as api:
        done = api.accuracy.audit(item, label)
    before = "" if done.instead_of is None else f" instead of {done.instead_of}"
    answer = f"{short(done.release)} said {done.called} ({done.probability:.0%} sure)"
    show_result(done, as_json, f"{done.id}: you say {done.label}{before}, {answer}")


def _row(name: str, of: Estimate) -> list[object]:
    share = of.corrected
    text = of.not_known if share is None else f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})"
    return [name, of.items, text, of.audited, of.cannot_say]
