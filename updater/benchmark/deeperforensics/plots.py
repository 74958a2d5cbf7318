"""The pictures of a page about distortions: a map and curves by distortion and level."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from updater.benchmark.forgerynet.results import Measured
from updater.benchmark.report.outcome import nested_over_seeds
from updater.benchmark.report.page import Picture
from updater.benchmark.report.plots import new_figure, shaded_table, svg
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import LEVELS


def pictures(runs: Sequence[Measured]) -> list[Picture]:
    """Return the map and the curves of AUC and accuracy; nothing where none were measured."""
    trained = runs[0].outcome.about.get("by_distortion_trained_on")
    found = []
    for name in ("auc", "acc"):
        cells = by_distortion(runs, name)
        if not np.isfinite(cells).any():
            continue
        levels = [f"level {level}" for level in LEVELS]
        labels = ("", "", name)
        heat = shaded_table(cells, list(DEEPERFORENSICS), levels, labels, span=(0.5, 1.0), digits=2)
        said = f"{name} by distortion and level, trained on {trained}, one distortion at a time."
        found += [Picture(heat, said), Picture(_curves(cells, name), f"The same {name} as curves.")]
    return found


def by_distortion(runs: Sequence[Measured], name: str) -> NDArray[np.float64]:
    """Return a figure's mean over the seeds, float64 [7, 5]; not a number where there is none."""
    cells = np.full((len(DEEPERFORENSICS), len(LEVELS)), np.nan)
    over = nested_over_seeds([run.outcome.by_distortion for run in runs])
    for row, distortion in enumerate(DEEPERFORENSICS):
        for column, level in enumerate(LEVELS):
            figure = over.get(f"{distortion}:{level}", {}).get(name)
            if figure is not None and figure.mean is not None:
                cells[row, column] = figure.mean
    return cells


def _curves(cells: NDArray[np.float64], name: str) -> str:
    figure, axes = new_figure(5.4, 3.6)
    for distortion, row in zip(DEEPERFORENSICS, cells, strict=True):
        axes.plot(LEVELS, row, marker="o", markersize=3, label=distortion)
    axes.axhline(0.5, color="#a0aec0", linewidth=0.8, linestyle=":")
    axes.set(xlabel="level", ylabel=name, xticks=LEVELS)
    axes.legend(frameon=False, ncols=2)
    return svg(figure)
