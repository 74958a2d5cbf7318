"""The demonstration's last tables: counts, shares, times and claims."""

from rich.console import Console
from rich.text import Text

from deploy.demo.claims import DemoReport, LabelShares
from deploy.demo.located import LEAST_IOU, SMALL_AREA, PlaceReport, WhenReport
from updater.scan.training import FOUND_FROM
from updater.terminal import print_grid

FROM_CACHE = "from .forgewatch/cache: an earlier run made it by the same code, packages, seed and sizes"
MISSED = 0.5
"""A family whose fakes are called real more often than this is said to be missed."""


def show(console: Console, report: DemoReport) -> None:
    """Print the counts."""
    _families(console, report)
    for family, part in report.families.items():
        for when, shares in (("before", part.before), ("after", part.after)):
            if family != "real" and shares.n and shares.real > MISSED:
                console.print(
                    f"[red]missed[/red]: {shares.real:.0%} of {family} was called real {when} the update"
                )
    _place(console, report.place)
    _when(console, report.when)
    _delivery(console, report)
    claims = [
        (Text("holds", "green") if holds else Text("does not hold", "bold red"), claim)
        for claim, holds in report.claims.items()
    ]
    aims = [
        (Text("reached") if reached else Text("not reached", "yellow"), aim)
        for aim, reached in report.aims.items()
    ]
    print_grid(console, "", ("", ""), claims)
    print_grid(console, "Aimed at, and not claimed", ("", ""), aims)


def _families(console: Console, report: DemoReport) -> None:
    rows: list[tuple[str | Text, ...]] = []
    for family, part in report.families.items():
        unseen = family == report.unseen
        before, after = part.before, part.after
        rows.append(
            (
                Text(f"{family} (unseen)" if unseen else family, "bold" if unseen else ""),
                f"{before.n} → {after.n}",
                *(_change(before, after, field) for field in ("real", "fake", "unknown", "named")),
            )
        )
    title = "Verdict shares, per cent, before → after the update"
    print_grid(console, title, ("family", "items", "real", "fake", "unknown", "named"), rows)


def _change(before: LabelShares, after: LabelShares, field: str) -> str:
    return f"{100 * getattr(before, field):.0f} → {100 * getattr(after, field):.0f}"


def _place(console: Console, place: PlaceReport) -> None:
    rows = [
        (
            area,
            str(map_.n),
            *(
                f"{count} ({count / max(map_.n, 1):.0%})"
                for count in (map_.not_real, map_.marked, map_.found)
            ),
            f"{map_.by_chance:.1f}",
        )
        for area, map_ in (
            (f"under {SMALL_AREA:.0%}", place.small),
            (f"{SMALL_AREA:.0%} and more", place.large),
        )
    ]
    print_grid(
        console,
        f"Pictures forged in a part (found: the marked cells overlap it, IoU at least {LEAST_IOU})",
        ("area", "pictures", "not called real", "marked by a map", "found", "found by chance"),
        rows,
    )


def _when(console: Console, when: WhenReport) -> None:
    rows = [
        (
            kind,
            str(of.clips),
            str(of.not_real),
            str(of.unknown),
            str(of.with_segment),
            *(
                (str(of.stretches), f"{of.found} ({of.found / of.stretches:.0%})")
                if of.stretches
                else ("", "")
            ),
            f"{of.by_chance:.1f}" if of.stretches else "",
        )
        for kind, of in {"real": when.reals, **when.families, "forged, all": when.forged}.items()
    ]
    print_grid(
        console,
        "Clips, some forged in stretches (found: a told stretch overlaps it, temporal IoU at least "
        f"{FOUND_FROM})",
        (
            "clips",
            "sent",
            "not called real",
            "called unknown",
            "with a told stretch",
            "forged stretches",
            "found",
            "found by chance",
        ),
        rows,
    )


def _delivery(console: Console, report: DemoReport) -> None:
    rows = (
        ("sent", str(report.sent)),
        ("verdicts + dead letters", f"{report.verdicts} + {report.dead_letters}"),
        ("lost, twice", f"{report.lost}, {report.duplicated}"),
        ("requests failed during the swap", f"{report.swap_failed_requests} ({report.swap_sent} sent)"),
        ("AA before → after", f"{report.aa_before:.1f} → {report.aa_after:.1f} points"),
        (
            "AF of the same media (negative: forgotten)",
            f"{report.af:+.1f} points [{report.af_low:+.1f}, {report.af_high:+.1f}]",
        ),
        (
            "reals called unknown, fake",
            f"{report.reals_unknown:.1%}, {report.reals_fake:.1%} of {report.reals}",
        ),
        ("reals marked by a map", f"{report.place.reals_marked} of {report.place.reals}"),
        ("seconds of second looks", f"{report.second_looks_s:.0f}, while the next media were decoded"),
        ("seconds", ", ".join(f"{name} {seconds:.0f}" for name, seconds in report.seconds.items())),
        ("in all", f"{sum(report.seconds.values()):.0f} s"),
        ("release 0", "made in this run" if "train" in report.seconds else FROM_CACHE),
    )
    print_grid(console, "", ("", ""), rows)
