"""The pictures of a page about ForgeryNet's tasks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import figure as matplotlib_figure

from updater.benchmark.forgerynet.maps import Map
from updater.benchmark.report.outcome import Figure
from updater.benchmark.report.plots import shaded_table, svg
from updater.filters import Picture


def cross_map(table: dict[str, dict[str, dict[str, Figure]]], name: str) -> str:
    """Return a figure of what was trained on (rows) at what was tested on (columns), as an SVG."""
    columns = list(dict.fromkeys(tested for of in table.values() for tested in of))
    cells = np.full((len(table), len(columns)), np.nan)
    for row, of in enumerate(table.values()):
        for column, tested in enumerate(columns):
            figure = of.get(tested, {}).get(name)
            if figure is not None and figure.mean is not None:
                cells[row, column] = figure.mean
    labels = ("tested on", "trained on", name)
    return shaded_table(cells, list(table), columns, labels, span=(0.5, 1.0), digits=2)


class MapBeside(NamedTuple):
    """A picture, where it is forged, and where it is said to be."""

    name: str
    picture: Picture
    """uint8 RGB [H, W, 3]"""
    true: Map
    said: Map


def maps_beside_truths(shown: Sequence[MapBeside]) -> str:
    """Return pictures above their truths above what was said of them, one a column, as an SVG."""
    figure = matplotlib_figure.Figure(figsize=(1.5 * len(shown) + 0.6, 4.8), layout="constrained")
    places = figure.subplots(3, len(shown), squeeze=False)
    for column, one in zip(places.T, shown, strict=True):
        column[0].imshow(one.picture)
        column[0].set_title(one.name, fontsize=8, parse_math=False)
        for axes, cells in zip(column[1:], (one.true, one.said), strict=True):
            axes.imshow(cells, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    for axes, name in zip(places[:, 0], ("picture", "truth", "said"), strict=True):
        axes.set_ylabel(name, fontsize=8)
    for axes in places.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    return svg(figure)
