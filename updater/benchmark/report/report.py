"""What a benchmark hands over: a table on the terminal, and the same as JSON, Markdown and an HTML page."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ingest.durable import write_durably
from updater.benchmark.report import plots
from updater.benchmark.report.page import Picture, page
from updater.benchmark.report.results import RejectionScores, Run
from updater.benchmark.report.run_folder import load_runs
from updater.benchmark.report.summary import summarise
from updater.benchmark.report.table import (
    Grid,
    comparison_grid,
    figures_grid,
    matrix_grid,
    rejection_grid,
    sets_grid,
)

Scores = Sequence[Mapping[str, RejectionScores]]
"""For each run, its scores by name, as `save_run` takes them."""


_EACH = {
    "seed",
    "matrix",
    "rejection",
    "rejection_source_known",
    "rejection_within_source",
    "outlier_sets",
}
"""what a report says of each run, beside its figures"""


def show(console: Console, runs: Sequence[Run]) -> None:
    """Print the matrix and the figures of one benchmark's runs."""
    matrix_grid(runs).show(console)
    figures_grid(runs).show(console)
    if len(runs[0].rejection) > 1:
        rejection_grid(runs).show(console)
    if runs[0].outlier_sets:
        sets_grid(runs).show(console)


def report_json(runs: Sequence[Run]) -> str:
    """Return the figures (mean over the runs, under `sd` their deviation) and what to repeat them by."""
    about = _about(runs[0]) | {"seeds": [run.seed for run in runs], "tasks": runs[0].tasks}
    each = {"each": [run.model_dump(include=_EACH) | run.figures.model_dump() for run in runs]}
    return json.dumps(summarise(runs).model_dump() | about | each, indent=1, allow_nan=False) + "\n"


def report_markdown(runs: Sequence[Run]) -> str:
    """Return the figures and the matrix in Markdown, and what to repeat them by."""
    grids = _grids(runs)
    tables = "\n".join(f"## {grid.title}\n\n{grid.markdown()}" for grid in grids)
    facts = "\n".join(f"- {name}: `{value.replace('`', ' ')}`" for name, value in _facts(runs).items())
    return f"# {_title(runs)}\n\n{tables}\n## To repeat it\n\n{facts}\n"


def report_page(runs: Sequence[Run], scores: Scores) -> str:
    """Return the page with tables and pictures; without scores of rejection it has no ROC."""
    rejection = [one for by_name in scores for one in by_name.values() if len(one.known) and len(one.unknown)]
    pictures = [
        Picture(plots.heat_map(runs), "Accuracy on each task after each task, mean over the seeds."),
        Picture(plots.aa_over_time(runs), "Average accuracy over the tasks learnt so far."),
    ]
    if rejection:
        pictures += [
            Picture(plots.roc(rejection), "Rejection of what was never trained on; the line is at 5 %."),
            Picture(plots.energy_histograms(rejection), "Energy and the gate's score of known and unknown."),
        ]
    lead = (
        "Points are of 100, shares and AUCs of 1. Positive is the unknown in AUC and AP, the known in FPR95."
        " What rejection is worth is told within a source: elsewhere a new source passes for a new forgery."
    )
    return page(_title(runs), lead, _grids(runs), pictures, _facts(runs))


def _grids(runs: Sequence[Run]) -> list[Grid]:
    scores = [rejection_grid(runs)] if runs[0].rejection else []
    sets = [sets_grid(runs)] if runs[0].outlier_sets else []
    return [figures_grid(runs), matrix_grid(runs), *scores, *sets]


def write_reports(folder: Path, runs: Sequence[Run], scores: Scores, report: Path | None = None) -> None:
    """Write report.json, report.md and report.html into the folder, and the JSON to `report` too.

    Raises OSError.
    """
    figures = report_json(runs).encode()
    for path, content in (
        (folder / "report.json", figures),
        (folder / "report.md", report_markdown(runs).encode()),
        (folder / "report.html", report_page(runs, scores).encode()),
    ):
        write_durably(path, content)
    if report is not None:
        write_durably(report, figures)


def compare(folders: Sequence[Path]) -> Grid:
    """Return the benchmarks in these folders side by side, for the terminal, Markdown or a page.

    Raises ResultsError for a folder that holds no runs.
    """
    return comparison_grid([(folder.resolve().name, load_runs(folder)[0]) for folder in folders])


def _title(runs: Sequence[Run]) -> str:
    return f"forgewatch benchmark {runs[0].benchmark}: {runs[0].stream}, {len(runs[0].tasks)} tasks"


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    seeds = ", ".join(str(run.seed) for run in runs)
    seconds = [sum(sum(step.seconds.values()) for step in run.steps) for run in runs]
    took = ", ".join(f"{value:.0f}" for value in seconds)
    about = _about(runs[0])
    return {
        "command": shlex.join(runs[0].command),
        "seeds": seeds,
        "stream": f"{runs[0].stream} {runs[0].stream_digest}",
        "device": runs[0].device,
        "seconds a run": took,
        **{name: json.dumps(about[name], sort_keys=True) for name in ("options", "versions")},
    }


def _about(run: Run) -> dict[str, Any]:
    fields = {"benchmark", "stream", "stream_digest", "command", "options", "versions", "device"}
    return run.model_dump(include=fields)
