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
from updater.benchmark.report.outcome import Figures, over_seeds, spread_of, summary_of
from updater.benchmark.report.run_folder import Run, load_runs, load_scores
from updater.benchmark.report.table import grids

Runs = Sequence[Run]
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


def write_reports(folder: Path, runs: Runs, report: Path | None = None, others: Sequence[Path] = ()) -> None:
    """Write report.json, report.md and report.html into the runs' folder, and the JSON to `report` too.

    others: folders of runs that the page's polygons are beside. Raises OSError, and ResultsError where a
    folder cannot be read.
    """
    figures = report_json(runs).encode()
    scores = [load_scores(folder / f"seed-{run.seed}") for run in runs]
    beside = {folder.resolve().name: runs} | {of.resolve().name: load_runs(of) for of in others}
    write_durably(folder / "report.json", figures)
    write_durably(folder / "report.md", report_markdown(runs).encode())
    write_durably(folder / "report.html", report_page(runs, scores, beside).encode())
    if report is not None:
        write_durably(report, figures)


def report_json(runs: Sequence[Run]) -> str:
    """Return every figure over the seeds, each seed's figures, and the options to repeat them.

    Figures stand by the parts of an `Outcome`, each {mean, sd, n, interval}; how families, or sources, differ
    stands under `between_families`. A seed's own figures are numbers.
    """
    first, whole = runs[0], summary_of([run.outcome for run in runs])
    about = first.model_dump(mode="json", exclude={"format", "seed", "seconds", "outcome"})
    report: dict[str, Any] = {
        **about,
        "seeds": [run.seed for run in runs],
        "tasks": first.outcome.tasks,
        **{part: _records(rows) for part, rows in whole.items()},
        "between_families": _records(spread_of(whole["families"])),
        "each": [
            {
                **run.outcome.model_dump(mode="json", include={"matrix", "about", "notes"}),
                "seed": run.seed,
                "seconds": run.seconds,
                **{part: _records(getattr(run.outcome, part)) for part in whole},
            }
            for run in runs
        ],
    }
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def report_markdown(runs: Sequence[Run]) -> str:
    """Return the tables in Markdown, and the options to repeat the runs."""
    return _PAGES.get_template("report.md.j2").render(_page_values(runs))


def report_page(runs: Runs, scores: Scores, beside: Mapping[str, Runs] | None = None) -> str:
    """Return the page with tables and pictures; without scores of rejection it has no ROC.

    beside: runs by the name of their folder, these among them, whose accuracies are drawn as polygons.
    """
    return _PAGES.get_template("report.html.j2").render(
        _page_values(runs),
        newcomers=runs[0].benchmark == "newcomer",
        stream=runs[0].outcome.matrix,
        pictures=[
            # A data URI: the ids in one SVG cannot meet those in another.
            ("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(), caption)
            for svg, caption in _pictures(runs, scores, beside or {runs[0].benchmark: runs})
        ],
    )


def _pictures(runs: Runs, scores: Scores, beside: Mapping[str, Runs]) -> Iterator[tuple[str, str]]:
    """Yield each picture of the page, an SVG, and its caption."""
    outcomes = [run.outcome for run in runs]
    whole = summary_of(outcomes)
    yield from ((drawing.svg, drawing.caption) for outcome in outcomes for drawing in outcome.shown)
    if outcomes[0].matrix:
        yield plots.heat_map(runs), "Accuracy on each task after each task, mean over the seeds."
        yield plots.aa_over_time(runs), "Average accuracy over the tasks learnt so far."
    if outcomes[0].matrix and sum("acc" in of for of in whole["families"].values()) > 2:
        families = {name: over_seeds([run.outcome.families for run in of]) for name, of in beside.items()}
        yield plots.radar(families), "Accuracy on each domain after the last step, mean over the seeds."
    if rejection := [s for of in scores for s in of.values() if len(s.known) and len(s.unknown)]:
        first = next(iter(whole["rejection"]), "score")
        yield plots.roc(rejection, first), "Rejection of untrained families; the line is at 5 %."
        yield plots.energy_histograms(rejection, first), f"Energy and {first} of known and unknown."
    trained = outcomes[0].about.get("by_distortion_trained_on")
    by_level: dict[str, dict[str, Figures]] = {}
    for step, figures in whole["by_distortion"].items():
        distortion, _, level = step.partition(":")
        by_level.setdefault(distortion, {})[level] = figures
    for table, across, down, caption in (
        (whole["table"], "tested on", "trained on", "by what was trained on (rows) and tested on (columns)."),
        (by_level, "level", "", f"by distortion and level, trained on {trained}, one distortion at a time."),
    ):
        for name in ("auc", "acc"):
            if any(name in of for row in table.values() for of in row.values()):
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


def _records(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures as JSON has them, under the names that they stand under; of one seed a number."""
    return {name: _records(of) if isinstance(of, dict) else of.as_record() for name, of in rows.items()}
