"""The pictures of a report, each as the text of one SVG that needs no font, script or file beside it."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from updater.benchmark.report.outcome import Figures
from updater.benchmark.report.results import RejectionScores, average_precision
from updater.benchmark.report.run_folder import Run
from updater.benchmark.report.table import mean_matrix
from updater.filters import Picture
from updater.measures import auroc

_FIRST, _ENERGY, _KNOWN, _UNKNOWN, _CONTROL = "#0b6e99", "#b7791f", "#2b6cb0", "#c53030", "#2f855a"
_GRID = np.linspace(0, 1, 201)
_BINS = 30


def heat_map(runs: Sequence[Run]) -> str:
    """B as a map, mean over the runs: a task a row, the step after which it was tested a column."""
    mean, tasks = mean_matrix(runs), runs[0].outcome.tasks
    lowest = min(50.0, float(np.nanmin(mean)))
    labels = ("after learning", "accuracy on", "accuracy, points")
    return _shaded_table(mean, tasks, tasks, labels, span=(lowest, 100), digits=0)


class MapBeside(NamedTuple):
    """A picture, where it is forged, and where it is said to be."""

    name: str
    picture: Picture
    """uint8 RGB [H, W, 3]"""
    true: NDArray[np.float32]
    predicted: NDArray[np.float32]


def maps_beside_truths(maps: Sequence[MapBeside]) -> str:
    """Pictures above their truths above their predictions, one a column."""
    figure = Figure(figsize=(1.5 * len(maps) + 0.6, 4.8), layout="constrained")
    places = figure.subplots(3, len(maps), squeeze=False)
    for column, of in zip(places.T, maps, strict=True):
        column[0].imshow(of.picture)
        column[0].set_title(of.name, fontsize=8, parse_math=False)
        for axes, cells in zip(column[1:], (of.true, of.predicted), strict=True):
            axes.imshow(cells, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    for axes, name in zip(places[:, 0], ("picture", "truth", "said"), strict=True):
        axes.set_ylabel(name, fontsize=8)
    for axes in places.flat:
        axes.set(xticks=[], yticks=[])
    return svg(figure)


def figure_map(table: Mapping[str, Mapping[str, Figures]], name: str, across: str, down: str) -> str:
    """A figure of rows and columns, which these words tell."""
    columns = list(dict.fromkeys(column for of in table.values() for column in of))
    means = [
        [of[on][name].mean if name in of.get(on, {}) else None for on in columns] for of in table.values()
    ]
    cells = np.array(means, np.float64)
    return _shaded_table(cells, list(table), columns, (across, down, name), span=(0.5, 1.0), digits=2)


def _shaded_table(
    cells: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str, str],
    *,
    span: tuple[float, float],
    digits: int,
) -> str:
    """A table as a map. cells: [rows, columns], nan where there is none; labels: of columns, rows, cells.

    span: the values that the colours go from and to.
    """
    width, height = (max(3.2, 0.62 * len(names) + 1.6) for names in (columns, rows))
    figure, axes = _new_figure(width + 1.2, height)
    lowest, highest = span
    drawn = axes.pcolormesh(cells, cmap="viridis", vmin=lowest, vmax=highest, edgecolors="white", linewidth=1)
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            ink = "white" if value < lowest + 0.6 * (highest - lowest) else "black"
            text = f"{value:.{digits}f}"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontsize=8)
    _name_ticks(axes, np.arange(len(columns)) + 0.5, columns)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows, parse_math=False)
    axes.invert_yaxis()
    axes.set(aspect="equal", xlabel=labels[0], ylabel=labels[1])
    axes.spines[:].set_visible(False)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label=labels[2])
    return svg(figure)


def aa_over_time(runs: Sequence[Run]) -> str:
    """AA over the tasks learnt so far after each step, mean and standard deviation; and joint training's."""
    figure, axes = _new_figure(6.2, 3.4)
    outcomes = [run.outcome for run in runs]
    steps = np.arange(1, len(outcomes[0].tasks) + 1)
    curves = np.array([outcome.aa_over_time() for outcome in outcomes])
    _band(axes, steps.astype(np.float64), curves, _FIRST, "after each task")
    joint = [run.figures.joint_aa for run in runs if run.figures.joint_aa is not None]
    if joint:
        axes.axhline(
            float(np.mean(joint)), color=_ENERGY, linestyle="--", label="joint training on all tasks"
        )
    _name_ticks(axes, steps, outcomes[0].tasks)
    axes.set_ylabel("AA, points")
    axes.legend(frameon=False)
    return svg(figure)


def radar(methods: Mapping[str, Mapping[str, Figures]]) -> str:
    """The accuracy on each domain of the first method after the last step, 0..1: a polygon a method."""
    figure = Figure(figsize=(5.6, 4.8 + 0.25 * len(methods)), layout="constrained")
    axes = figure.subplots(subplot_kw={"projection": "polar"})
    domains = [name for name, of in next(iter(methods.values())).items() if "acc" in of]
    angles = np.linspace(0, 2 * np.pi, len(domains), endpoint=False)
    for method, of in methods.items():
        means = [of[name]["acc"].mean if "acc" in of.get(name, {}) else None for name in domains]
        shares = np.array(means, np.float64)
        axes.plot(np.append(angles, angles[0]), np.append(shares, shares[0]), label=method)
    axes.set_xticks(angles, domains, parse_math=False)
    axes.set(ylim=(0, 1))
    return _with_legend(figure, "outside lower center")


def precision_recall(tests: Mapping[str, tuple[NDArray[np.bool_], NDArray[np.float32]]]) -> str:
    """The precision over the recall of fakes, a curve a domain, whose area is its AP.

    tests: of each domain which items are fakes, bool [n], and their scores, float32 [n], higher for fakes.
    """
    figure, axes = _new_figure(6.4, 4.2)
    axes.set_prop_cycle(color=[mpl.colormaps["tab20"](number) for number in range(20)])
    for name, (fake, score) in tests.items():
        precision, recall, _ = precision_recall_curve(fake, score)
        area = average_precision(score[fake], score[~fake])
        axes.step(recall, precision, where="post", label=f"{name}, AP {area:.3f}")
    axes.set(xlabel="recall of fakes", ylabel="precision", xlim=(0, 1.01), ylim=(0, 1.01))
    return _with_legend(figure, "outside right upper")


def _with_legend(figure: Figure, place: Any) -> str:
    for text in figure.legend(frameon=False, loc=place).get_texts():
        text.set_parse_math(False)
    return svg(figure)


def roc(scores: Sequence[RejectionScores], first: str) -> str:
    """The ROC of unknown (positive) against known, by a run's first score, of this name, and by energy.

    Scores of different runs have different scales, so it is the mean of their curves, with the standard
    deviation; the AUC told is the mean of theirs.
    """
    figure, axes = _new_figure(4.4, 4.2)
    pairs = {
        first: (_FIRST, [(score.unknown, score.known) for score in scores]),
        "plain energy": (_ENERGY, [(score.unknown_energy, score.known_energy) for score in scores]),
    }
    for name, (colour, everything) in pairs.items():
        # A plain network's energy is measured for the first seed alone.
        samples = [(unknown, known) for unknown, known in everything if len(unknown) and len(known)]
        if not samples:
            continue
        curves = np.array([_caught_share(unknown, known) for unknown, known in samples])
        area = np.mean([auroc(unknown, known) for unknown, known in samples])
        _band(axes, _GRID, curves, colour, f"{name}, AUC {area:.3f}")
    axes.plot([0, 1], [0, 1], color="#a0aec0", linewidth=0.8, linestyle=":")
    axes.axvline(0.05, color="#a0aec0", linewidth=0.8)
    axes.set(xlabel="known called unknown", ylabel="unknown called unknown", xlim=(0, 1), ylim=(0, 1.01))
    axes.legend(frameon=False, loc="lower right")
    return svg(figure)


def energy_histograms(scores: Sequence[RejectionScores], first: str) -> str:
    """How energy and a run's first score are spread over known and unknown, each run weighing the same."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    energies = {"known": [s.known_energy for s in scores], "unknown": [s.unknown_energy for s in scores]}
    of_first = {
        "known": [s.known for s in scores],
        "unknown": [s.unknown for s in scores],
        "reals of unknown sources": [s.control for s in scores],
    }
    for axes, label, groups in ((left, "energy", energies), (right, first, of_first)):
        _histogram(axes, groups)
        axes.set(xlabel=f"{label} (higher: less familiar)", ylabel="share of items")
        axes.spines[["top", "right"]].set_visible(False)
        # Above the bars, which may stand anywhere.
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, handlelength=1)
    return svg(figure)


def _histogram(axes: Axes, groups: dict[str, list[NDArray[np.float32]]]) -> None:
    colours = dict(zip(groups, (_KNOWN, _UNKNOWN, _CONTROL), strict=False))
    everything = np.concatenate([array for arrays in groups.values() for array in arrays])
    if not len(everything):
        return
    # A few far outliers must not press all the rest into one bar.
    edges = np.histogram_bin_edges(np.quantile(everything, [0.002, 0.998]), _BINS)
    for name, arrays in groups.items():
        present = [array.clip(edges[0], edges[-1]) for array in arrays if len(array)]
        if present:
            shares = np.mean([np.histogram(array, edges)[0] / len(array) for array in present], 0)
            axes.stairs(shares, edges, color=colours[name], fill=True, alpha=0.25)
            axes.stairs(shares, edges, color=colours[name], label=name)


def _caught_share(unknown: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the share of unknown caught where each share of _GRID of the known is."""
    is_unknown = np.arange(len(unknown) + len(known)) < len(unknown)
    false, caught, _ = roc_curve(is_unknown, np.concatenate([unknown, known]))
    return np.asarray(np.interp(_GRID, false, caught), np.float64)


def _band(axes: Axes, x: NDArray[np.float64], curves: NDArray[np.float64], colour: str, label: str) -> None:
    mean = curves.mean(0)
    axes.plot(x, mean, color=colour, label=label)
    if len(curves) > 1:
        sd = curves.std(0, ddof=1)
        axes.fill_between(x, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)


def _name_ticks(axes: Axes, places: NDArray[np.generic], names: Sequence[str]) -> None:
    # A folder's name is no formula, though it may hold dollar signs.
    axes.set_xticks(places, names, rotation=40, ha="right", rotation_mode="anchor", parse_math=False)


def _new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty plot of that size, inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def svg(figure: Figure) -> str:
    out = io.StringIO()
    # Letters as shapes: no font of the reader's machine. No date, fixed ids: the same picture, the same text.
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "forgewatch"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
