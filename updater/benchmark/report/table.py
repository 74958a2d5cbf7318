"""The tables of a report: what is in them, once, and how they look on the terminal and in Markdown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from updater.benchmark.report.results import Run, WithinSource, figure_of
from updater.benchmark.report.summary import Interval, Summary, summarise
from updater.benchmark.report.terminal import print_grid

# Name, where it lies in Figures, and digits.
_FIGURES = (
    ("AA", "aa", 2),
    ("joint AA", "joint_aa", 2),
    ("AF", "af", 2),
    ("AF (paper)", "af_paper", 2),
    ("AA-M", "aa_m", 2),
    ("mAP", "map", 2),
    ("real/fake AUC", "real_fake_auc", 3),
    ("closed set", "closed_set_accuracy", 2),
    ("reals unknown", "reals_unknown", 3),
    ("reals fake", "reals_fake", 3),
    ("AUC, within source", "within_source.auc", 3),
    ("caught at 5 %, within source", "within_source.caught_at_5", 3),
    ("power: unseen not called real", "power.share", 3),
    ("AUC", "unseen.auc", 3),
    ("FPR95 (pos. known)", "unseen.fpr95", 3),
    ("caught, deployed", "unseen.caught_deployed", 3),
    ("caught at 5 %", "unseen.caught_at_5", 3),
    ("AP", "unseen.ap", 3),
    ("energy AUC", "unseen.energy_auc", 3),
    ("control AUC", "unseen.control_auc", 3),
    ("AUC, source known", "source_known.auc", 3),
    ("caught at 5 %, source known", "source_known.caught_at_5", 3),
    ("lone source AUC, source known", "lone_source_auc", 3),
    ("AUC, mean of outlier sets", "each_set.auc", 3),
    ("FPR95, mean of outlier sets", "each_set.fpr95", 3),
    ("AP, mean of outlier sets", "each_set.ap", 3),
    ("AUC, near sets", "near.auc", 3),
    ("FPR95, near sets", "near.fpr95", 3),
    ("AP, near sets", "near.ap", 3),
    ("AUC, far sets", "far.auc", 3),
    ("FPR95, far sets", "far.fpr95", 3),
    ("AP, far sets", "far.ap", 3),
    ("update / joint, seconds", "update_cost", 2),
)
_NOTHING = "–"


@dataclass(frozen=True)
class Grid:
    """A table of plain text: every row is as long as the head."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, its first column to the left, the others to the right."""
        lines = [self.head, ("---", *["---:"] * (len(self.head) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines) + "\n"

    def show(self, console: Console) -> None:
        """Print the table; nothing in it is read as markup."""
        print_grid(console, self.title, self.head, self.rows)


def figures_grid(runs: Sequence[Run]) -> Grid:
    """Return the figures of one benchmark, one a row; those that no run has are left out."""
    summary = summarise(runs)
    rows = [
        (name, _shown(summary, field, digits)) for name, field, digits in _FIGURES if _has(summary, field)
    ]
    return Grid(
        f"mean ± sd over {_seeds(summary)}{_about_intervals([summary])}", ("figure", "value"), tuple(rows)
    )


def matrix_grid(runs: Sequence[Run]) -> Grid:
    """Return B as in CDDB: a task a row, the step after which it was tested a column, mean over the runs."""
    # Steps by number: the names of twelve tasks are wider than a terminal.
    head = ("accuracy on, after task", *(str(step) for step in range(1, len(runs[0].tasks) + 1)))
    rows = [
        (f"{number} {task}", *(f"{b:.1f}" if math.isfinite(b) else "" for b in row))
        for number, (task, row) in enumerate(zip(runs[0].tasks, mean_matrix(runs), strict=True), 1)
    ]
    return Grid("accuracy on each task (rows) after each task (columns), points", head, tuple(rows))


def rejection_grid(runs: Sequence[Run]) -> Grid:
    """Return the scores one a row, mean and deviation over the runs; no row where there are none."""
    head = (
        "score",
        "AUC, within source",
        "AUC",
        "FPR95 (pos. known)",
        "AP",
        "caught at 5 %",
        "control AUC",
        "AUC, source known",
        "caught, source known",
    )
    rows = []
    for score in runs[0].rejection:
        out = [run.rejection[score] for run in runs if score in run.rejection]
        known = [run.rejection_source_known[score] for run in runs if score in run.rejection_source_known]
        within = [run.rejection_within_source.get(score, WithinSource()).auc for run in runs]
        cells = [_spread_of(within)]
        cells += [
            _spread_of([getattr(one, figure) for one in out])
            for figure in ("auc", "fpr95", "ap", "caught_at_5", "control_auc")
        ]
        cells += [_spread_of([getattr(one, figure) for one in known]) for figure in ("auc", "caught_at_5")]
        rows.append((score, *cells))
    return Grid("rejection of what was never trained on, by score", head, tuple(rows))


def sets_grid(runs: Sequence[Run]) -> Grid:
    """Return each outlier set on its own, a score and a set a row, mean and deviation over the runs."""
    rows = []
    for score, sets in runs[0].outlier_sets.items():
        for name in sets:
            found = [run.outlier_sets[score][name] for run in runs if name in run.outlier_sets.get(score, {})]
            cells = [_spread_of([getattr(one, figure) for one in found]) for figure in ("auc", "fpr95", "ap")]
            rows.append((score, name, *cells))
    return Grid(
        "rejection of each outlier set on its own, mean over the steps",
        ("score", "outlier set", "AUC", "FPR95 (pos. known)", "AP"),
        tuple(rows),
    )


def _spread_of(values: Sequence[float | None]) -> str:
    present = [value for value in values if value is not None]
    if not present:
        return _NOTHING
    spread = f" ± {np.std(present, ddof=1):.3f}" if len(present) > 1 else ""
    return f"{np.mean(present):.3f}{spread}"


def comparison_grid(named: Sequence[tuple[str, Sequence[Run]]]) -> Grid:
    """Return several benchmarks side by side, one a column, with the options in which they differ on top.

    Figures that none of them has are left out. Where the streams differ a row says so, since then the
    figures cannot be compared.
    """
    summaries = [summarise(runs) for _, runs in named]
    rows = [(option, *values) for option, values in _differing(named).items()]
    rows += [
        (name, *(_shown(summary, field, digits) for summary in summaries))
        for name, field, digits in _FIGURES
        if any(_has(summary, field) for summary in summaries)
    ]
    rows.append(("seeds", *(str(summary.runs) for summary in summaries)))
    return Grid(
        f"mean ± sd over seeds{_about_intervals(summaries)}",
        ("figure", *(name for name, _ in named)),
        tuple(rows),
    )


def mean_matrix(runs: Sequence[Run]) -> NDArray[np.float64]:
    """Return the mean over the runs of B, float64 [n, n] in points, nan below the diagonal."""
    mean: NDArray[np.float64] = np.mean([run.accuracies() for run in runs], axis=0)
    return mean


def _differing(named: Sequence[tuple[str, Sequence[Run]]]) -> dict[str, list[str]]:
    first = [runs[0] for _, runs in named]
    found = {"stream": [f"{run.stream} {run.stream_digest[:8]}" for run in first]}
    for option in sorted({option for run in first for option in run.options}):
        found[option] = [str(run.options.get(option, _NOTHING)) for run in first]
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _about_intervals(summaries: Sequence[Summary]) -> str:
    there = any(summary.interval != Interval() for summary in summaries)
    return "; in brackets 95 % over images drawn anew for these networks" if there else ""


def _has(summary: Summary, field: str) -> bool:
    return figure_of(summary, field) is not None


def _shown(summary: Summary, field: str, digits: int) -> str:
    mean, sd = figure_of(summary, field), figure_of(summary.sd, field)
    low, high = (figure_of(end, field) for end in (summary.interval.low, summary.interval.high))
    if mean is None:
        return _NOTHING
    spread = "" if sd is None else f" ± {sd:.{digits}f}"
    around = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{mean:.{digits}f}{spread}{around}"


def _seeds(summary: Summary) -> str:
    return f"{summary.runs} seed{'s' if summary.runs > 1 else ''}"


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
