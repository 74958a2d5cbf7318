"""Simulations of alarms, estimates and rollouts, and the costs of the memory's index: `make simulations`.

`.venv/bin/python tests/simulations/simulate.py COMMAND --help` says what each takes.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.output import print_table, progress_bar, writable
from deploy.cli.runs import one_line

app = typer.Typer(help="Simulate alarms, estimates and rollouts; measure the memory's index.")


@app.command()
def estimate(
    windows: Annotated[int, typer.Option(min=1, help="windows of each case that are simulated")] = 40,
    audited: Annotated[int, typer.Option(min=1, max=4000, help="of a window, on average")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="of the simulation")] = 0,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
) -> None:
    """Simulate how often the estimate of accuracy holds what is right, under drift and of unseen sources."""
    from estimate_coverage import ITEMS, measure

    writable(report)
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        found = list(measure(windows, audited, seed, progress))
    print_table(
        f"windows of {ITEMS} verdicts whose share of right ones the interval held",
        ("case", "verdicts", "stated", "covered", "95 % interval", "at all of 10 looks", "half width"),
        (
            (
                c.case,
                c.of,
                f"{c.stated} of {c.windows}",
                f"{c.covered} of {c.stated}",
                f"{c.low:.0%} to {c.high:.0%}",
                c.always,
                f"{100 * c.half_width:.1f} points",
            )
            for c in found
        ),
    )
    if report is not None:
        report.write_text(json.dumps([asdict(each) for each in found], indent=1))


@app.command()
def rollout(
    rollouts: Annotated[int, typer.Option(min=1, help="rollouts of each setting")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="of the simulation")] = 0,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
) -> None:
    """Simulate rollouts of healthy and bad challengers: how many are rolled back, and after how long."""
    from rollout_power import measure, rollout_json, row_of

    writable(report)
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        found = list(measure(rollouts, seed, progress))
    columns = (
        "challenger",
        "sources",
        "burst",
        "rolled back",
        "95 % interval",
        "inconclusive",
        "passes, min",
        "ends, min",
        "items",
        "items, 90 %",
    )
    print_table(f"{rollouts} rollouts each, medians", columns, [row_of(each) for each in found])
    if report:
        report.write_text(rollout_json(found, seed))


@app.command()
def shift(
    before: Annotated[int, typer.Option(min=100, help="a source's own items before it shifts")] = 1000,
    streams: Annotated[int, typer.Option(min=1, help="sources that are simulated")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="of the simulation")] = 0,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="measure drift instead on your own media, as forgewatch score --json printed them"),
    ] = None,
    other: Annotated[
        Path | None, typer.Option(help="the same of another camera, which is to be told")
    ] = None,
) -> None:
    """Simulate how many items of a shifted source raise an alarm, and how many sources of reals raise one.

    By how far forged items shift and what share of the items they are; by how reals come in bursts. The same
    of drift, of which one of three statistics of verdicts moves either way; or drift on scores of one's own.
    """
    if scores is not None:
        return _replay(scores, other, before, streams, seed, report)
    import drift_power
    import shift_bursts
    from shift_power import AUCS, SHARES, SIGMAS, bar, measure, shift_json

    writable(report)
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        bursts = list(shift_bursts.measure(streams, seed, progress))
        power = list(measure(before, streams, seed, SHARES, AUCS, progress))
        false_drifts = list(drift_power.false_drifts(streams, seed, progress))
        drifts = list(drift_power.drift_power(before, streams, seed, progress))
    print_table(
        f"false alarms among {streams} sources of {shift_bursts.ITEMS} reals that come in bursts",
        ("items of a burst", "correlation", "with an alarm", "95 % interval"),
        (
            (b.length, b.correlation, f"{b.alarms / b.streams:.1%}", f"{b.low:.1%} to {b.high:.1%}")
            for b in bursts
        ),
    )
    print_table(
        f"items until the alarm, after {before} of the source's own",
        ("forged", "item AUC", f"closed form, {SIGMAS:.0f} sigma", "10 %", "median", "90 %", "median, drawn"),
        (
            (
                f"{p.share:.0%}",
                f"{p.item_auc:.2f}",
                f"{p.closed_form:.0f}",
                p.low,
                p.median,
                p.high,
                bar(p.median),
            )
            for p in power
        ),
    )
    print_table(
        "false alarms of drift where nothing drifts",
        ("items", "of a burst", "correlation", "with an alarm", "95 % interval", "highest ln e"),
        (
            (
                f.items,
                f.length,
                f.correlation,
                f"{f.alarms} of {f.streams}",
                f"{f.low:.1%} to {f.high:.1%}",
                f"{f.highest:.1f}",
            )
            for f in false_drifts
        ),
    )
    print_table(
        f"items until the alarm of drift, after {before} of the source's own",
        ("the release's test of drift", "one statistic drifts by", "10 %", "median", "90 %", "within 100"),
        ((d.number, f"{d.shift:+.1f} sd", d.low, d.median, d.high, f"{d.within_100:.0%}") for d in drifts),
    )
    if report:
        facts = shift_json(power, bursts, drifts, false_drifts, before, streams, seed)
        report.write_text(facts)


def _replay(
    scores: Path, other: Path | None, before: int, streams: int, seed: int, report: Path | None
) -> None:
    from drift_replay import changed, read_statistics, replay_json, unchanged

    writable(report)
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        own = read_statistics(scores)
        new = None if other is None else read_statistics(other)
        steady = unchanged(own, seed, progress)
        changes = [] if new is None else list(changed(own, new, before, streams, seed, progress))
    print_table(
        f"false alarms of drift, {steady.pictures} verdicts of your own",
        ("items", "with an alarm", "95 % interval", "highest ln e"),
        [
            (
                steady.items,
                f"{steady.alarms} of {steady.streams}",
                f"{steady.low:.1%} to {steady.high:.1%}",
                f"{steady.highest:.1f}",
            )
        ],
    )
    if changes:
        print_table(
            f"items until the other camera is told, after {before} of your own",
            ("of the items", "the release's test of drift", "10 %", "median", "90 %", "within 100"),
            ((f"{c.share:.0%}", c.number, c.low, c.median, c.high, f"{c.within_100:.0%}") for c in changes),
        )
    if report:
        report.write_text(replay_json(steady, changes))


@app.command()
def memory(
    items: Annotated[list[int], typer.Option(min=1, help="exemplars; may be repeated")] = [10_000, 100_000],  # noqa: B006  # typer takes its defaults so, and nothing changes them
    seed: Annotated[int, typer.Option(min=0, help="of the generated exemplars")] = 0,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="measure instead which copies of these join a group, by folder"
        ),
    ] = None,
) -> None:
    """Measure the memory's index on generated exemplars: adding, searching, saving, starting, and recall."""
    from memory_costs import costs_json, measure_all

    writable(report)
    if pictures is not None:
        _near_duplicates(pictures, report)
        return
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        found = list(measure_all(items, seed, progress))
    columns = (
        "exemplars",
        "of kind",
        "add, ms",
        "search, ms",
        "recall@10",
        "build, s",
        "start, s",
        "start, MB",
        "snapshot, s",
        "snapshot, MB",
        "next, s",
        "next, MB",
    )
    rows = (
        (
            f"{one.items:,}",
            one.kind,
            f"{1e3 * one.add_s:.2f}",
            f"{1e3 * one.search_s:.2f}",
            f"{one.recall:.3f}",
            f"{one.build_s:.1f}",
            f"{one.start_s:.2f}",
            f"{one.start_bytes / 1e6:.0f}",
            f"{one.snapshot_s:.2f}",
            f"{one.snapshot_bytes / 1e6:.1f}",
            f"{one.next_s:.2f}",
            f"{one.next_bytes / 1e6:.1f}",
        )
        for one in found
    )
    print_table("the memory's index", columns, rows)
    if report:
        report.write_text(costs_json(found, seed))


def _near_duplicates(folder: Path, report: Path | None) -> None:
    from near_duplicates import measure, shares_json

    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        shares = measure(folder, progress)
    rows = [
        (name, f"{joined} of {shares.pictures}", f"{joined / max(1, shares.pictures):.3f}")
        for name, joined in shares.copies.items()
    ]
    rows.append(
        (
            "two files",
            f"{shares.joined} of {shares.pairs:,} pairs",
            f"{shares.joined / max(1, shares.pairs):.6f}",
        )
    )
    print_table(f"copies in one group ({shares.flat} too flat for a hash)", ("copy", "joined", "share"), rows)
    if report:
        report.write_text(shares_json(folder, shares))


if __name__ == "__main__":
    app()
