"""What a benchmark hands over: tables on the terminal, and the same as JSON, Markdown and an HTML page."""

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from jinja2 import Environment, PackageLoader
from pydantic import JsonValue
from rich.console import Console

from ingest.durable import write_durably
from updater.benchmark.report import plots, results
from updater.benchmark.report.outcome import (
    Figures,
    Values,
    nested_over_seeds,
    over_seeds,
    table_over_seeds,
)
from updater.benchmark.report.run_folder import Run, load_runs, load_scores
from updater.benchmark.report.table import TextGrid, comparison_grid, grids

Scores = Sequence[Mapping[str, results.RejectionScores]]
"""of each run, its scores of rejection by name"""

_PAGES = Environment(
    loader=PackageLoader("updater.benchmark.report", "."),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
_OF_EACH = ("rejection", "rejection_source_known", "rejection_within_source")


def show(console: Console, runs: Sequence[Run]) -> None:
    """Print the tables, and what was left out."""
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


def compare(folders: Sequence[Path]) -> TextGrid:
    """Return the benchmarks in these folders side by side. Raises ResultsError for one that holds no runs."""
    return comparison_grid([(folder.resolve().name, load_runs(folder)) for folder in folders])


def report_json(runs: Sequence[Run]) -> str:
    """Return every figure over the seeds, those of each seed, and what to repeat them by.

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
    """Return the tables in Markdown, and what to repeat the runs by."""
    tables = "\n".join(f"## {grid.title}\n\n{grid.markdown()}" for grid in grids(runs))
    facts = "\n".join(f"- {name}: `{value.replace('`', ' ')}`" for name, value in facts_of(runs).items())
    return f"# {title_of(runs)}\n\n{tables}\n## To repeat it\n\n{facts}\n"


def report_page(runs: Sequence[Run], scores: Scores) -> str:
    """Return the page with tables and pictures; without scores of rejection it has no ROC."""
    return _PAGES.get_template("report.html.j2").render(
        title=title_of(runs),
        newcomers=runs[0].benchmark == "newcomer",
        stream=runs[0].outcome.matrix,
        grids=grids(runs),
        pictures=[
            # A data URI: the ids in one SVG cannot meet those in another.
            ("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(), caption)
            for svg, caption in _pictures(runs, scores)
        ],
        facts=facts_of(runs),
    )


def _pictures(runs: Sequence[Run], scores: Scores) -> Iterator[tuple[str, str]]:
    """Yield each picture of the page, an SVG, and what it shows."""
    outcomes = [run.outcome for run in runs]
    yield from ((shown.svg, shown.caption) for outcome in outcomes for shown in outcome.shown)
    if outcomes[0].matrix:
        yield plots.heat_map(runs), "Accuracy on each task after each task, mean over the seeds."
        yield plots.aa_over_time(runs), "Average accuracy over the tasks learnt so far."
    if rejection := [s for of in scores for s in of.values() if len(s.known) and len(s.unknown)]:
        yield plots.roc(rejection), "Rejection of what was never trained on; the line is at 5 %."
        yield plots.energy_histograms(rejection), "Energy and the gate's score of known and unknown."
    if table := table_over_seeds([outcome.table for outcome in outcomes]):
        for name in ("auc", "acc"):
            caption = f"{name} by what was trained on (rows) and tested on (columns)."
            yield plots.figure_map(table, name, "tested on", "trained on"), caption
    if single := nested_over_seeds([outcome.by_distortion for outcome in outcomes]):
        trained = outcomes[0].about.get("by_distortion_trained_on")
        by_level: dict[str, dict[str, Figures]] = {}
        for step, figures in single.items():
            distortion, _, level = step.partition(":")
            by_level.setdefault(distortion, {})[level] = figures
        for name in ("auc", "acc"):
            caption = f"{name} by distortion and level, trained on {trained}, one distortion at a time."
            yield plots.figure_map(by_level, name, "level", ""), caption


def title_of(runs: Sequence[Run]) -> str:
    """Return what a report is headed by."""
    first, tasks = runs[0], len(runs[0].outcome.tasks)
    task = f" --task {first.task}" if first.task else ""
    return f"forgewatch benchmark {first.benchmark}{task}: {first.data}" + (
        f", {tasks} tasks" if tasks else ""
    )


def facts_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return what to repeat the runs by, by name."""
    first = runs[0]
    facts = {
        "command": shlex.join(first.command),
        "seeds": ", ".join(str(run.seed) for run in runs),
        "data": f"{first.data} {first.data_digest}",
        "device": first.device,
        "seconds a run": ", ".join(f"{run.seconds:.0f}" for run in runs),
    }
    told = {"options": first.options, "versions": first.versions, "about": first.outcome.about}
    told["left out"] = list(first.outcome.notes)
    return facts | {name: json.dumps(value, sort_keys=True) for name, value in told.items() if value}


def _of_stream(runs: Sequence[Run], about: Mapping[str, Any]) -> dict[str, Any]:
    figures = over_seeds([run.outcome.figures for run in runs])

    def of(end: int) -> results.Figures:
        ends = {name: figure.interval[end] for name, figure in figures.items() if figure.interval}
        return results.Figures.of(ends)

    low, high = of(0), of(1)
    # A share over seeds has the interval over seeds, and not the mean of theirs.
    means = {name: figure.mean for name, figure in figures.items()}
    means |= {"power.low": low.power.share, "power.high": high.power.share}
    first = runs[0]
    families = nested_over_seeds([run.outcome.families for run in runs])
    return {
        **results.Figures.of(means).model_dump(),
        "sd": results.Figures.of({name: figure.sd for name, figure in figures.items()}).model_dump(),
        "interval": {"low": low.model_dump(), "high": high.model_dump()},
        "by_family": _rows_as_records(families),
        "between_families": _between({name: _means(of) for name, of in families.items()}),
        "runs": len(runs),
        "stream": first.data,
        "stream_digest": first.data_digest,
        **about,
        "tasks": first.outcome.tasks,
        "each": [
            {
                "seed": run.seed,
                "matrix": run.outcome.matrix,
                **{part: _numbers(getattr(run.outcome, part)) for part in _OF_EACH},
                "outlier_sets": {score: _numbers(sets) for score, sets in run.outcome.outlier_sets.items()},
                **run.figures.model_dump(),
            }
            for run in runs
        ],
    }


def _of_task(runs: Sequence[Run], about: Mapping[str, Any]) -> dict[str, Any]:
    outcomes, first = [run.outcome for run in runs], runs[0]
    zeros = over_seeds([outcome.zeros for outcome in outcomes])
    table = table_over_seeds([outcome.table for outcome in outcomes])
    parts: dict[str, Any] = {
        "families": _rows_as_records(nested_over_seeds([outcome.families for outcome in outcomes])),
        "zeros": _rows_as_records({"": zeros})[""],
        "table": {name: _rows_as_records(of) for name, of in table.items()},
        "by_distortion": _rows_as_records(nested_over_seeds([outcome.by_distortion for outcome in outcomes])),
    }
    return {
        **_rows_as_records({"": over_seeds([outcome.figures for outcome in outcomes])})[""],
        **{name: part for name, part in parts.items() if part},
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
                "figures": {name: value.value for name, value in run.outcome.figures.items()},
            }
            for run in runs
        ],
    }


def _of_newcomers(runs: Sequence[Run]) -> dict[str, Any]:
    outcomes = [run.outcome for run in runs]

    def both(each: Sequence[Values]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for full, figure in over_seeds(each).items():
            name, _, when = full.rpartition("_")
            items = sum(values[full].n or 0 for values in each if full in values)
            low, high = figure.interval or (None, None)
            found.setdefault(name, {})[when] = {"items": items, "mean": figure.mean, "low": low, "high": high}
        return found

    sources = sorted({source for outcome in outcomes for source in outcome.families})
    by_source = {source: both([o.families.get(source, {}) for o in outcomes]) for source in sources}
    return {
        "seeds": len(runs),
        "unknown_thresholds": [outcome.about["unknown_thresholds"] for outcome in outcomes],
        "own_thresholds": [outcome.about.get("own_thresholds", [[], []]) for outcome in outcomes],
        "whole": both([outcome.figures for outcome in outcomes]),
        "by_source": by_source,
        "between_sources": _spread(by_source),
    }


def _spread(by_source: Mapping[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return how figures differ between sources, before and after."""
    spread: dict[str, dict[str, Any]] = {}
    for when in ("before", "after"):
        means = {
            source: {name: of[when]["mean"] for name, of in figures.items() if when in of}
            for source, figures in by_source.items()
        }
        for name, figure in _between(means, "sources").items():
            spread.setdefault(name, {})[when] = figure
    return spread


def _means(figures: Figures) -> dict[str, float]:
    return {name: figure.mean for name, figure in figures.items() if figure.mean is not None}


def _between(means: Mapping[str, Mapping[str, float]], what: str = "families") -> dict[str, dict[str, Any]]:
    """Return how figures differ between families or sources, which stand by name.

    Another generator is another draw, which no interval over images tells.
    """
    each: dict[str, list[float]] = {}
    for figures in means.values():
        for name, mean in figures.items():
            each.setdefault(name, []).append(mean)
    return {
        name: {what: len(of), "mean": fmean(of), "sd": stdev(of) if len(of) > 1 else None}
        for name, of in each.items()
    }


def _rows_as_records(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, JsonValue]]:
    return {row: {name: figure.as_record() for name, figure in of.items()} for row, of in rows.items()}


def _numbers(rows: Mapping[str, Values]) -> dict[str, dict[str, float | None]]:
    return {row: {name: value.value for name, value in of.items()} for row, of in rows.items()}
