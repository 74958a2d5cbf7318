"""The tables of a report: what is in them, once, and how they look on the terminal and in Markdown."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from updater.benchmark.report.outcome import Figure, Figures, nested_over_seeds, over_seeds, table_over_seeds
from updater.benchmark.report.run_folder import Run
from updater.terminal import print_grid

# A stream's figures in the order of its tables: name, and digits. Others stand under their own names, with 3.
_NAMES = {
    "aa": ("AA", 2),
    "joint_aa": ("joint AA", 2),
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
    "unseen.energy_auc": ("energy AUC", 3),
    "unseen.own_energy_auc": ("AUC of the energy alone", 3),
    "unseen.control_auc": ("control AUC", 3),
    "source_known.auc": ("AUC, source known", 3),
    "source_known.caught_at_5": ("caught at 5 %, source known", 3),
    "lone_source_auc": ("lone source AUC, source known", 3),
    **{
        f"{part}.{figure}": (f"{name}, {where}", 3)
        for part, where in (
            ("each_set", "mean of outlier sets"),
            ("near", "near sets"),
            ("far", "far sets"),
        )
        for figure, name in (("auc", "AUC"), ("fpr95", "FPR95"), ("ap", "AP"))
    },
    "update_cost": ("update / joint, seconds", 2),
}
_OF_REJECTION = (
    ("AUC, within source", "rejection_within_source", "auc"),
    ("AUC", "rejection", "auc"),
    ("FPR95 (pos. known)", "rejection", "fpr95"),
    ("AP", "rejection", "ap"),
    ("caught at 5 %", "rejection", "caught_at_5"),
    ("control AUC", "rejection", "control_auc"),
    ("AUC, source known", "rejection_source_known", "auc"),
    ("caught, source known", "rejection_source_known", "caught_at_5"),
)
_NOTHING = "–"


@dataclass(frozen=True)
class TextGrid:
    """A table of plain text: every row is as long as the head."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, its first column to the left, the others to the right."""
        lines = [self.head, ("---", *["---:"] * (len(self.head) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(map(_escape_cell, line))} |" for line in lines) + "\n"

    def show(self, console: Console) -> None:
        """Print the table; nothing in it is read as markup."""
        print_grid(console, self.title, self.head, self.rows)


def grids(runs: Sequence[Run]) -> list[TextGrid]:
    """Return the tables of a benchmark's runs: of each part of their outcomes that there is."""
    outcomes = [run.outcome for run in runs]
    mean = f"mean ± sd over {len(runs)} seed{'s' if len(runs) > 1 else ''}"
    of_parts: list[TextGrid] = []
    if figures := over_seeds([outcome.figures for outcome in outcomes]):
        zeros = over_seeds([outcome.zeros for outcome in outcomes])
        of_parts.append(_figures(f"{mean}{_about_intervals([figures])}", figures, zeros))
    if outcomes[0].matrix:
        of_parts.append(_matrix(runs))
    if len(outcomes[0].rejection) > 1:
        of_parts.append(_rejection(runs))
    if sets := table_over_seeds([outcome.outlier_sets for outcome in outcomes]):
        of_parts.append(_sets(sets))
    if families := nested_over_seeds([outcome.families for outcome in outcomes]):
        part = "source" if runs[0].benchmark == "newcomer" else "family"
        of_parts.append(_nested_grid(f"by {part}, {mean}", part, families, items=True))
    table = table_over_seeds([outcome.table for outcome in outcomes])
    for name in dict.fromkeys(name for of in table.values() for cell in of.values() for name in cell):
        tested = tuple(dict.fromkeys(column for of in table.values() for column in of))
        rows = ((row, *(_cell(of.get(column, {}), name) for column in tested)) for row, of in table.items())
        title = f"{name}, trained on (rows), tested on (columns), {mean}"
        of_parts.append(TextGrid(title, ("", *tested), tuple(rows)))
    if single := nested_over_seeds([outcome.by_distortion for outcome in outcomes]):
        of_parts.append(_nested_grid(f"under one distortion, {mean}", "TYPE:LEVEL", single))
    return of_parts


def comparison_grid(named: Sequence[tuple[str, Sequence[Run]]]) -> TextGrid:
    """Return several benchmarks side by side, one a column, with the options in which they differ on top.

    Figures that none of them has are left out. Where the data differ a row says so, since then the figures
    cannot be compared.
    """
    each = [over_seeds([run.outcome.figures for run in runs]) for _, runs in named]
    rows = [(option, *values) for option, values in _differing([runs[0] for _, runs in named]).items()]
    rows += [(label, *(_cell(of, name) for of in each)) for name, label in _present(each)]
    rows.append(("seeds", *(str(len(runs)) for _, runs in named)))
    head = ("figure", *(name for name, _ in named))
    return TextGrid(f"mean ± sd over seeds{_about_intervals(each)}", head, tuple(rows))


def mean_matrix(runs: Sequence[Run]) -> NDArray[np.float64]:
    """Return the mean over the runs of B, float64 [n, n] in points, nan below the diagonal."""
    mean: NDArray[np.float64] = np.mean([run.outcome.accuracies() for run in runs], axis=0)
    return mean


def _figures(title: str, figures: Figures, zeros: Figures) -> TextGrid:
    counted = any(figure.n is not None for figure in figures.values())
    head = ("figure", "value", *(["empty map"] if zeros else []), *(["items"] if counted else []))
    rows = []
    for name, label in _present([figures]):
        cells = [_cell(figures, name), *([_cell(zeros, name)] if zeros else [])]
        rows.append((label, *cells, *([str(figures[name].n)] if counted else [])))
    return TextGrid(title, head, tuple(rows))


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


def _rejection(runs: Sequence[Run]) -> TextGrid:
    """Return the scores one a row, mean and deviation over the runs."""
    parts = {
        part: nested_over_seeds([getattr(run.outcome, part) for run in runs])
        for part in dict.fromkeys(part for _, part, _ in _OF_REJECTION)
    }
    rows = (
        (score, *(_cell(parts[part].get(score, {}), figure) for _, part, figure in _OF_REJECTION))
        for score in parts["rejection"]
    )
    head = ("score", *(name for name, _, _ in _OF_REJECTION))
    return TextGrid("rejection of what was never trained on, by score", head, tuple(rows))


def _sets(sets: Mapping[str, Mapping[str, Figures]]) -> TextGrid:
    rows = (
        (score, name, *(_cell(figures, figure) for figure in ("auc", "fpr95", "ap")))
        for score, of_score in sets.items()
        for name, figures in of_score.items()
    )
    head = ("score", "outlier set", "AUC", "FPR95 (pos. known)", "AP")
    return TextGrid("rejection of each outlier set on its own, mean over the steps", head, tuple(rows))


def _nested_grid(title: str, first: str, rows: Mapping[str, Figures], *, items: bool = False) -> TextGrid:
    """Return a part of the outcomes a row. items: with how many each is of, and how far rows lie apart."""
    labels = dict(_present(list(rows.values())))
    between = ("mean, ± between rows", *(_between(rows, name) for name in labels), "")
    return TextGrid(
        title,
        (first, *labels.values(), *(["items"] if items else [])),
        tuple(
            (
                row,
                *(_cell(figures, name) for name in labels),
                *([str(max(figure.n or 0 for figure in figures.values()))] if items else []),
            )
            for row, figures in rows.items()
        )
        + ((between,) if items and len(rows) > 1 else ()),
    )


def _between(rows: Mapping[str, Figures], name: str) -> str:
    means = [mean for of in rows.values() if name in of and (mean := of[name].mean) is not None]
    spread = stdev(means) if len(means) > 1 else None
    return Figure(mean=fmean(means), sd=spread, n=None).as_text(_NAMES.get(name, (name, 3))[1])


def _present(each: Sequence[Figures]) -> Iterator[tuple[str, str]]:
    """Yield the name and the label of each figure that any of them has a value of."""
    there = dict.fromkeys(name for of in each for name, figure in of.items() if figure.mean is not None)
    yield from ((name, label) for name, (label, _) in _NAMES.items() if name in there)
    # What is grouped and has no label, such as the ends of an interval, has no row of its own.
    yield from ((name, name) for name in there if name not in _NAMES and "." not in name)


def _cell(figures: Mapping[str, Figure], name: str) -> str:
    return figures[name].as_text(_NAMES.get(name, (name, 3))[1]) if name in figures else _NOTHING


def _differing(first: Sequence[Run]) -> dict[str, list[str]]:
    facts = {"data": [f"{run.data} {run.data_digest[:8]}" for run in first]}
    facts["code"] = [run.versions.get("forgewatch", _NOTHING) for run in first]
    for option in sorted({option for run in first for option in run.options}):
        facts[option] = [str(run.options.get(option, _NOTHING)) for run in first]
    return {name: values for name, values in facts.items() if len(set(values)) > 1}


def _about_intervals(each: Sequence[Figures]) -> str:
    there = any(figure.interval for figures in each for figure in figures.values())
    return "; in brackets 95 % over images drawn anew for these networks" if there else ""


def _escape_cell(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
