"""`forgewatch benchmark estimate`: how often the estimates of accuracy hold what is right."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.output import print_table, progress_bar, writable
from deploy.cli.runs import one_line


def estimate(
    windows: Annotated[int, typer.Option(min=1, help="windows of each case that are simulated")] = 40,
    audited: Annotated[int, typer.Option(min=1, max=4000, help="of a window, on average")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="of the simulation")] = 0,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
) -> None:
    """Simulate how often the estimates of accuracy hold what is right, healthy and under drift."""
    from updater.benchmark.estimate_coverage import ITEMS, measure

    writable(report)
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        found = list(measure(windows, audited, seed, progress))
    print_table(
        f"windows of {ITEMS} verdicts whose share of right ones the interval held",
        (
            "case",
            "verdicts",
            "by",
            "covered",
            "95 % interval",
            "at all of 10 looks",
            "half width",
            "with an alarm",
        ),
        (
            (
                c.case,
                c.of,
                c.by,
                f"{c.covered} of {c.windows}",
                f"{c.low:.0%} to {c.high:.0%}",
                c.always,
                f"{100 * c.half_width:.1f} points",
                c.alarms,
            )
            for c in found
        ),
    )
    if report is not None:
        report.write_text(json.dumps([asdict(each) for each in found], indent=1))
