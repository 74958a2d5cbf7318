"""A benchmark's reports: tables on the terminal, and the same as JSON, Markdown and an HTML page."""

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from rich.console import Console

from ingest.durable import write_durably
from updater.benchmark.report import plots, results
from updater.benchmark.report.outcome import REJECTION, Figures, Values, over_seeds, spread_of, summary_of
from updater.benchmark.report.run_folder import Run, load_scores
from updater.benchmark.report.table import grids

Scores = Sequence[Mapping[str, results.RejectionScores]]
"""of each run, its scores of rejection by name"""

_PAGES = Environment(
    loader=PackageLoader("updater.benchmark.report", "."),
    autoescape=select_autoescape(["html.j2"]),
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def show(console: Console, runs: Sequence[Run]) -> None:
    """Print the tables, and the omissions."""
    for grid in grids(runs):
        grid.show(console)
    for note in runs[0].outcome.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def write_reports(folder: Path, runs: Sequence[Run], report: Path | None = None) -> None:
    """Write report.json, report.md and report.html into the runs' folder, and the JSON to `report` too.

    Raises OSError, and ResultsError where scores of the folder cannot be read.
    """
    figures = report_json(runs).encode()
    scores = [load_scores(folder / f"seed-{run.seed}") for run in runs]
    for path, content in (
        (folder / "report.json", figures),
        (folder / "report.md", report_markdown(runs).encode()),
        (folder / "report.html", report_page(runs, scores).encode()),
    ):
        write_durably(path, content)
    if report is not None:
        write_durably(report, figures)


def report_json(runs: Sequence[Run]) -> str:
    """Return every figure over the seeds, each seed's figures, and the options to repeat them.

    Of a stream the figures stand as numbers, a mean under its name, and by the same names under `sd` and
    `interval`; each family's within its source stand under `by_family`, and their spread under
    `between_families`. Of the newcomer's way each is {items, mean, low, high} before and after, `items` of
    all seeds, and `between_sources` has {sources, mean, sd}; of other benchmarks each is {mean, sd, n}.
    """
    first = runs[0]
    about: dict[str, Any] = first.model_dump(mode="json", include={"benchmark", "command", "options"})
    about |= {"versions": first.versions, "device": first.device, "seeds": [run.seed for run in runs]}
    if first.benchmark == "newcomer":
        report = _of_newcomers(runs)
    else:
        report = _of_stream(runs, about) if first.outcome.matrix else _of_task(runs, about)
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def report_markdown(runs: Sequence[Run]) -> str:
    """Return the tables in Markdown, and the options to repeat the runs."""
    return _PAGES.get_template("report.md.j2").render(_page_values(runs))


def report_page(runs: Sequence[Run], scores: Scores) -> str:
    """Return the page with tables and pictures; without scores of rejection it has no ROC."""
    return _PAGES.get_template("report.html.j2").render(
        _page_values(runs),
        newcomers=runs[0].benchmark == "newcomer",
        stream=runs[0].outcome.matrix,
        pictures=[
            # A data URI: the ids in one SVG cannot meet those in another.
            ("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(), caption)
            for svg, caption in _pictures(runs, scores)
        ],
    )


def _pictures(runs: Sequence[Run], scores: Scores) -> Iterator[tuple[str, str]]:
    """Yield each picture of the page, an SVG, and its caption."""
    outcomes = [run.outcome for run in runs]
    whole = summary_of(outcomes)
    yield from ((drawing.svg, drawing.caption) for outcome in outcomes for drawing in outcome.shown)
    if outcomes[0].matrix:
        yield plots.heat_map(runs), "Accuracy on each task after each task, mean over the seeds."
        yield plots.aa_over_time(runs), "Average accuracy over the tasks learnt so far."
    if rejection := [s for of in scores for s in of.values() if len(s.known) and len(s.unknown)]:
        yield plots.roc(rejection), "Rejection of untrained families; the line is at 5 %."
        yield plots.energy_histograms(rejection), "Energy and the gate's score of known and unknown."
    trained = outcomes[0].about.get("by_distortion_trained_on")
    by_level: dict[str, dict[str, Figures]] = {}
    for step, figures in whole["by_distortion"].items():
        distortion, _, level = step.partition(":")
        by_level.setdefault(distortion, {})[level] = figures
    for table, across, down, caption in (
        (whole["table"], "tested on", "trained on", "by what was trained on (rows) and tested on (columns)."),
        (by_level, "level", "", f"by distortion and level, trained on {trained}, one distortion at a time."),
    ):
        for name in ("auc", "acc") if table else ():
            yield plots.figure_map(table, name, across, down), f"{name} {caption}"


def _page_values(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the parts of every page: its title, its tables, and the options to repeat the runs."""
    first, tasks = runs[0], len(runs[0].outcome.tasks)
    task = f" --task {first.task}" if first.task else ""
    facts = {
        "command": shlex.join(first.command),
        "seeds": ", ".join(str(run.seed) for run in runs),
        "data": f"{first.data} {first.data_digest}",
        "device": first.device,
        "seconds a run": ", ".join(f"{run.seconds:.0f}" for run in runs),
    }
    others = {"options": first.options, "versions": first.versions, "about": first.outcome.about}
    others["left out"] = list(first.outcome.notes)
    return {
        "title": f"forgewatch benchmark {first.benchmark}{task}: {first.data}"
        + (f", {tasks} tasks" if tasks else ""),
        "grids": grids(runs),
        "facts": facts | {name: json.dumps(value, sort_keys=True) for name, value in others.items() if value},
    }


def _of_stream(runs: Sequence[Run], about: Mapping[str, Any]) -> dict[str, Any]:
    first, whole = runs[0], summary_of([run.outcome for run in runs])

    def of(flat: Mapping[str, float | None]) -> dict[str, Any]:
        return results.Figures.of(flat).model_dump()

    ends = {name: figure.interval for name, figure in whole["figures"].items() if figure.interval}
    low, high = ({name: interval[end] for name, interval in ends.items()} for end in (0, 1))
    # A share over seeds has the interval over seeds, and not the mean of theirs.
    power = {"power.low": low.get("power.share"), "power.high": high.get("power.share")}
    return {
        **of({name: figure.mean for name, figure in whole["figures"].items()} | power),
        "sd": of({name: figure.sd for name, figure in whole["figures"].items()}),
        "interval": {"low": of(low), "high": of(high)},
        "by_family": _records(whole["families"]),
        "between_families": _spread(whole["families"], "families"),
        "runs": len(runs),
        "stream": first.data,
        "stream_digest": first.data_digest,
        **about,
        "tasks": first.outcome.tasks,
        "each": [
            {
                "seed": run.seed,
                "matrix": run.outcome.matrix,
                **{part: _records(getattr(run.outcome, part)) for part in (*REJECTION, "outlier_sets")},
                **run.figures.model_dump(),
            }
            for run in runs
        ],
    }


def _of_task(runs: Sequence[Run], about: Mapping[str, Any]) -> dict[str, Any]:
    first, whole = runs[0], summary_of([run.outcome for run in runs])
    parts = {part: whole[part] for part in ("families", "zeros", "table", "by_distortion")}
    return {
        **_records(whole["figures"]),
        **{name: _records(part) for name, part in parts.items() if part},
        "task": first.task,
        "data": first.data,
        "data_digest": first.data_digest,
        **about,
        "each": [
            {
                "seed": run.seed,
                "seconds": run.seconds,
                "about": run.outcome.about,
                "notes": run.outcome.notes,
                "figures": _records(run.outcome.figures),
            }
            for run in runs
        ],
    }


def _of_newcomers(runs: Sequence[Run]) -> dict[str, Any]:
    outcomes = [run.outcome for run in runs]

    def both(rows: Sequence[Values]) -> dict[str, dict[str, Any]]:
        figures = {}
        for name, figure in over_seeds(rows).items():
            items = sum(values[name].n or 0 for values in rows if name in values)
            low, high = figure.interval or (None, None)
            figures[name] = {"items": items, "mean": figure.mean, "low": low, "high": high}
        return _by_time(figures)

    sources = sorted({source for outcome in outcomes for source in outcome.families})
    return {
        "seeds": len(runs),
        "unknown_thresholds": [outcome.about["unknown_thresholds"] for outcome in outcomes],
        "own_thresholds": [outcome.about.get("own_thresholds", [[], []]) for outcome in outcomes],
        "whole": both([outcome.figures for outcome in outcomes]),
        "by_source": {source: both([o.families.get(source, {}) for o in outcomes]) for source in sources},
        "between_sources": _by_time(_spread(summary_of(outcomes)["families"], "sources")),
    }


def _by_time(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures NAME_before and NAME_after by the name, then before and after."""
    nested: dict[str, dict[str, Any]] = {}
    for full, value in figures.items():
        name, _, when = full.rpartition("_")
        nested.setdefault(name, {})[when] = value
    return nested


def _spread(rows: Mapping[str, Figures], counted: str) -> dict[str, dict[str, Any]]:
    between = spread_of(rows)
    return {name: {counted: of.n, "mean": of.mean, "sd": of.sd} for name, of in between.items()}


def _records(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures as JSON has them, under the names that they stand under; of one seed a number."""
    return {name: _records(of) if isinstance(of, dict) else of.as_record() for name, of in rows.items()}
