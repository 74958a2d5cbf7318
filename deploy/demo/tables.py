"""The demonstration's last tables: counts, shares, times and claims."""

from rich import box
from rich.console import Console
from rich.table import Table

from deploy.demo.claims import DemoReport, Shares

MISSED = 0.5
"""A family whose fakes are called real more often than this is said to be missed."""


def show(console: Console, report: DemoReport) -> None:
    """Print what was counted."""
    console.print(_families(report))
    for family, part in report.families.items():
        for when, shares in (("before", part.before), ("after", part.after)):
            if family != "real" and shares.n and shares.real > MISSED:
                console.print(
                    f"[red]missed[/red]: {shares.real:.0%} of {family} was called real {when} the update"
                )
    console.print(_delivery(report))
    console.print(_claims(report))


def _families(report: DemoReport) -> Table:
    table = Table(title="Verdict shares, per cent, before → after the update", box=box.SIMPLE_HEAD)
    for column in ("family", "items", "real", "fake", "unknown", "named"):
        table.add_column(column, justify="left" if column == "family" else "right")
    for family, part in report.families.items():
        name = f"[bold]{family} (unseen)[/bold]" if family == report.unseen else family
        before, after = part.before, part.after
        table.add_row(
            name,
            f"{before.n} → {after.n}",
            *(_change(before, after, field) for field in ("real", "fake", "unknown", "named")),
        )
    return table


def _change(before: Shares, after: Shares, field: str) -> str:
    return f"{100 * getattr(before, field):.0f} → {100 * getattr(after, field):.0f}"


def _delivery(report: DemoReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_row("sent", str(report.sent))
    table.add_row("verdicts + dead letters", f"{report.verdicts} + {report.dead_letters}")
    table.add_row("lost, twice", f"{report.lost}, {report.duplicated}")
    table.add_row(
        "requests failed during the swap", f"{report.swap_failed_requests} ({report.swap_sent} sent)"
    )
    table.add_row("AA before → after", f"{report.aa_before:.1f} → {report.aa_after:.1f} points")
    table.add_row("AF (negative: forgotten)", f"{report.af:+.1f} points")
    table.add_row(
        "reals called unknown, fake", f"{report.reals_unknown:.1%}, {report.reals_fake:.1%} of {report.reals}"
    )
    table.add_row("seconds", ", ".join(f"{name} {seconds:.0f}" for name, seconds in report.seconds.items()))
    table.add_row("in all", f"{sum(report.seconds.values()):.0f} s")
    return table


def _claims(report: DemoReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    for claim, holds in report.claims.items():
        table.add_row("[green]holds[/green]" if holds else "[bold red]does not hold[/bold red]", claim)
    return table
