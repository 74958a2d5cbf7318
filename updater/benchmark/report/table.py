"""The tables of a report: the one form that the terminal, report.md and report.html show."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from updater.benchmark.report.outcome import REJECTION, Figure, Figures, spread_of, summary_of
from updater.benchmark.report.run_folder import Run, load_runs
from updater.terminal import print_grid

SETS = (("each_set", "mean of outlier sets"), ("near", "near sets"), ("far", "far sets"))
# A stream's figures in the order of its tables: name, and digits. Others stand under their own names, with 3.
_NAMES = {
    "aa": ("AA", 2),
    "joint_aa": ("joint AA", 2),
    "seen_accuracy": ("accuracy on all seen", 2),
    "incremental_accuracy": ("average incremental accuracy", 2),
    "af": ("AF", 2),
    "af_paper": ("AF (paper)", 2),
    "aa_m": ("AA-M", 2),
    "map": ("mAP", 2),
    "map_mass": ("mAP, by mass", 2),
    "real_fake_auc": ("real/fake AUC", 3),
    "closed_set_accuracy": ("closed set", 2),
    "reals_unknown": ("reals unknown", 3),
    "reals_fake": ("reals fake", 3),
    "within_source.auc": ("AUC, within source", 3),
    "within_source.caught_at_5": ("caught at 5 %, within source", 3),
    "within_source.own_energy_auc": ("AUC of the energy alone, within source", 3),
    "power.share": ("power: unseen not called real", 3),
    "unseen.auc": ("AUC", 3),
    "unseen.fpr95": ("FPR95 (pos. known)", 3),
    "unseen.caught_deployed": ("caught, deployed", 3),
    "unseen.caught_at_5": ("caught at 5 %", 3),
    "unseen.ap": ("AP", 3),
    "unseen.energy_auc": ("AUC of the energy of a plain classifier", 3),
    "unseen.own_energy_auc": ("AUC of the energy alone", 3),
    "unseen.control_auc": ("control AUC", 3),
    "source_known.auc": ("AUC, source known", 3),
    "source_known.caught_at_5": ("caught at 5 %, source known", 3),
    "lone_source_auc": ("lone source AUC, source known", 3),
    **{
        f"{part}.{name}": (f"{name.upper()}, {of}", 3) for part, of in SETS for name in ("auc", "fpr95", "ap")
    },
    "update_cost": ("update / joint, seconds", 2),
}
_REJECTION = {
    "rejection_within_source.auc": "AUC, within source",
    "rejection.auc": "AUC",
    "rejection.fpr95": "FPR95 (pos. known)",
    "rejection.ap": "AP",
    "rejection.caught_at_5": "caught at 5 %",
    "rejection.control_auc": "control AUC",
    "rejection_source_known.auc": "AUC, source known",
    "rejection_source_known.caught_at_5": "caught, source known",
}
_NOTHING = "–"


@dataclass(frozen=True)
class TextGrid:
    """A table of plain text, which the terminal and every template show: rows are as long as the head."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def show(self, console: Console) -> None:
        """Print the table; nothing in it is read as markup."""
        print_grid(console, self.title, self.head, self.rows)

    def with_column(self, head: str, cells: Iterable[str]) -> Self:
        """Return the table with a last column; rows that it does not reach are empty there."""
        rows = zip_longest(self.rows, cells, fillvalue="")
        return replace(self, head=(*self.head, head), rows=tuple((*row, cell) for row, cell in rows))


def grids(runs: Sequence[Run]) -> list[TextGrid]:
    """Return the tables of a benchmark's runs: of each part of their outcomes that there is."""
    whole = summary_of([run.outcome for run in runs])
    mean = f"mean ± sd over {len(runs)} seed{'s' if len(runs) > 1 else ''}"
    made: list[TextGrid] = []
    rows: dict[tuple[str, ...], Figures]
    if whole["figures"]:
        made.append(_whole_grid(f"{mean}{_about_intervals([whole['figures']])}", whole))
    if runs[0].outcome.matrix:
        made.append(_matrix(runs))
    if len(whole["rejection"]) > 1:
        rows = {(score,): _rejection_of(whole, score) for score in whole["rejection"]}
        made.append(_grid("rejection of untrained families, by score", ("score",), rows, _REJECTION))
    if sets := whole["outlier_sets"]:
        rows = {(score, name): of for score, by_set in sets.items() for name, of in by_set.items()}
        columns = {"auc": "AUC", "fpr95": "FPR95 (pos. known)", "ap": "AP"}
        title = "rejection of each outlier set on its own, mean over the steps"
        made.append(_grid(title, ("score", "outlier set"), rows, columns))
        means = [label for _, label in SETS if any(label in by_set for by_set in sets.values())]
        pairs = [(label, name) for label in means for name in columns]
        rows = {(score,): {f"{a}.{b}": of[a][b] for a, b in pairs if a in of} for score, of in sets.items()}
        heads = {f"{label}.{name}": f"{columns[name]}, {label}" for label, name in pairs}
        if means:
            made.append(_grid("each score, mean over outlier sets and steps", ("score",), rows, heads))
    if families := whole["families"]:
        part = "source" if runs[0].benchmark == "newcomer" else "family"
        between = {"mean, ± between rows": spread_of(families)} if len(families) > 1 else {}
        unseen = {name: of for name, of in families.items() if name not in runs[0].outcome.tasks}
        if 0 < len(unseen) < len(families):
            between["mean of those not learnt"] = spread_of(unseen)
        items = (str(max(figure.n or 0 for figure in of.values())) for of in families.values())
        made.append(_rows_grid(f"by {part}, {mean}", part, families | between).with_column("items", items))
    tested = dict.fromkeys(column for of in whole["table"].values() for column in of)
    every = [cell for of in whole["table"].values() for cell in of.values()]
    for name in dict.fromkeys(name for cell in every for name in cell):
        cells = ((row, *(_cell(of.get(on, {}), name) for on in tested)) for row, of in whole["table"].items())
        title = f"{name}, trained on (rows), tested on (columns), {mean}"
        made.append(TextGrid(title, ("", *tested), tuple(cells)))
    if whole["by_distortion"]:
        made.append(_rows_grid(f"under one distortion, {mean}", "TYPE:LEVEL", whole["by_distortion"]))
    return made


def compare(folders: Sequence[Path]) -> TextGrid:
    """Return the benchmarks in these folders side by side, with the options in which they differ on top.

    Figures that none of them has are left out. Where the data differ a row says so, since then the figures
    cannot be compared. Raises ResultsError for a folder that holds no runs.
    """
    named = [(folder.resolve().name, load_runs(folder)) for folder in folders]
    figures: list[Figures] = []
    for whole in (summary_of([run.outcome for run in runs]) for _, runs in named):
        cells = ((row, on, cell) for row, of in whole["table"].items() for on, cell in of.items())
        table = {f"{name}, {row} on {on}": value for row, on, of in cells for name, value in of.items()}
        figures.append(whole["figures"] | table)
    rows = [(option, *values) for option, values in _differing([runs[0] for _, runs in named]).items()]
    rows += [(label, *(_cell(of, name) for of in figures)) for name, label in _present(figures).items()]
    rows.append(("seeds", *(str(len(runs)) for _, runs in named)))
    head = ("figure", *(name for name, _ in named))
    return TextGrid(f"mean ± sd over seeds{_about_intervals(figures)}", head, tuple(rows))


def mean_matrix(runs: Sequence[Run]) -> NDArray[np.float64]:
    """Return the mean over the runs of B, float64 [n, n] in points, nan below the diagonal."""
    return np.asarray(np.mean([run.outcome.accuracies() for run in runs], axis=0))


def _whole_grid(title: str, whole: Mapping[str, Any]) -> TextGrid:
    columns = {"value": whole["figures"]} | ({"empty map": whole["zeros"]} if whole["zeros"] else {})
    labels = _present([whole["figures"]])
    rows = ((label, *(_cell(of, name) for of in columns.values())) for name, label in labels.items())
    grid = TextGrid(title, ("figure", *columns), tuple(rows))
    if all(figure.n is None for figure in whole["figures"].values()):
        return grid
    return grid.with_column("items", (str(whole["figures"][name].n) for name in labels))


def _matrix(runs: Sequence[Run]) -> TextGrid:
    """Return B as in CDDB: a task a row, the step after which it was tested a column, mean over the runs."""
    tasks = runs[0].outcome.tasks
    # Steps by number: the names of twelve tasks are wider than a terminal.
    head = ("accuracy on, after task", *(str(step) for step in range(1, len(tasks) + 1)))
    rows = [
        (f"{number} {task}", *(f"{b:.1f}" if math.isfinite(b) else "" for b in row))
        for number, (task, row) in enumerate(zip(tasks, mean_matrix(runs), strict=True), 1)
    ]
    return TextGrid("accuracy on each task (rows) after each task (columns), points", head, tuple(rows))


def _rejection_of(whole: Mapping[str, Any], score: str) -> Figures:
    parts = {part: whole[part].get(score, {}) for part in REJECTION}
    return {f"{part}.{name}": figure for part, of in parts.items() for name, figure in of.items()}


def _rows_grid(title: str, first: str, rows: Mapping[str, Figures]) -> TextGrid:
    """Return every figure that any row has a value of."""
    return _grid(title, (first,), {(name,): of for name, of in rows.items()}, _present(list(rows.values())))


def _grid(
    title: str, first: Sequence[str], rows: Mapping[tuple[str, ...], Figures], columns: Mapping[str, str]
) -> TextGrid:
    """Return a table of figures. rows: by their first cells; columns: heads by the names of figures."""
    cells = ((*names, *(_cell(figures, name) for name in columns)) for names, figures in rows.items())
    return TextGrid(title, (*first, *columns.values()), tuple(cells))


def _present(rows: Sequence[Figures]) -> dict[str, str]:
    """Return the label of each figure that any of them has a value of, by its name."""
    there = dict.fromkeys(name for of in rows for name, figure in of.items() if figure.mean is not None)
    # What is grouped and has no label, such as the ends of an interval, has no row of its own.
    others = {name: name for name in there if name not in _NAMES and not re.search(r"\.\D", name)}
    return {name: label for name, (label, _) in _NAMES.items() if name in there} | others


def _cell(figures: Mapping[str, Figure], name: str) -> str:
    return figures[name].as_text(_NAMES.get(name, (name, 3))[1]) if name in figures else _NOTHING


def _differing(first: Sequence[Run]) -> dict[str, list[str]]:
    facts = {"data": [f"{run.data} {run.data_digest[:8]}" for run in first]}
    facts["code"] = [run.versions.get("forgewatch", _NOTHING) for run in first]
    for option in sorted({option for run in first for option in run.options}):
        facts[option] = [str(run.options.get(option, _NOTHING)) for run in first]
    return {name: values for name, values in facts.items() if len(set(values)) > 1}


def _about_intervals(rows: Sequence[Figures]) -> str:
    there = any(figure.interval for figures in rows for figure in figures.values())
    return "; in brackets 95 % over images drawn anew for these networks" if there else ""
