"""The figures of a benchmark with one seed, and of several seeds together."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, JsonValue, model_validator

from updater.benchmark.report.results import Number, Result, interval

REJECTION = ("rejection", "rejection_source_known", "rejection_within_source")
_PARTS = ("figures", "families", "zeros", "table", "by_distortion", "outlier_sets", *REJECTION)


class Value(BaseModel, frozen=True, extra="forbid"):
    """A figure of one seed; None where the data has nothing to measure it by."""

    value: Number
    n: int | None = None
    """how many items it is of; None where parts of it are of different numbers"""
    drawn: tuple[float, ...] = Field((), exclude=True, repr=False)
    """the same on items drawn anew, with the same draws for every seed; kept in a file of its own"""

    def as_record(self) -> float | None:
        """Return the number alone."""
        return self.value


class Figure(BaseModel, frozen=True, extra="forbid"):
    """A figure over seeds."""

    mean: float | None
    sd: float | None
    """over seeds; None of a single one"""
    n: int | None
    """how many items it is of, with each seed"""
    interval: tuple[float, float] | None = None
    """95 % of the means over the seeds lie in it where the items are drawn anew; None where none were"""

    def as_record(self) -> dict[str, JsonValue]:
        """Return the figure for a report: mean, sd and n, and the interval where there is one."""
        return self.model_dump(mode="json", exclude=None if self.interval else {"interval"})

    def as_text(self, digits: int = 3) -> str:
        """Return the figure as tables have it: mean ± sd [low, high]."""
        if self.mean is None:
            return "–"
        spread = "" if self.sd is None else f" ± {self.sd:.{digits}f}"
        ends = "" if self.interval is None else ", ".join(f"{end:.{digits}f}" for end in self.interval)
        return f"{self.mean:.{digits}f}{spread}" + (f" [{ends}]" if ends else "")


Values = dict[str, Value]
Table = dict[str, dict[str, Values]]
"""what was trained on → what was tested on → figures"""
Figures = dict[str, Figure]


class ReportPicture(BaseModel, frozen=True, extra="forbid"):
    """A picture of the page: an SVG, and its caption in one sentence."""

    svg: str
    caption: str


class Outcome(BaseModel, frozen=True, extra="forbid"):
    """The result of a benchmark with one seed: its figures, and further parts where it has them."""

    figures: Values = {}
    families: dict[str, Values] = {}
    """the same of each family's forgeries beside all reals, or of each source"""
    zeros: Values = {}
    """figures of the map that is 0 everywhere, of the spatial task"""
    table: Table = {}
    """of the protocol cross, and of DeeperForensics' trainings and tests"""
    by_distortion: dict[str, Values] = {}
    """by TYPE:LEVEL, of clips under that distortion"""
    tasks: tuple[str, ...] = ()
    """of a stream, in the order in which they were learnt"""
    matrix: tuple[tuple[Number, ...], ...] = ()
    """B[i][j]: accuracy on task i after task j, points; null where i is not yet learnt"""
    steps: tuple[Result, ...] = ()
    """what was measured after each task"""
    rejection: dict[str, Values] = {}
    """by score, each family left out, or the mean over the steps"""
    rejection_source_known: dict[str, Values] = {}
    """the same where the reals of the family's source are trained on"""
    rejection_within_source: dict[str, Values] = {}
    """the same, against the reals of the family's own source alone"""
    outlier_sets: Table = {}
    """rejection by score, of each outlier set on its own, the mean over the steps"""
    about: dict[str, JsonValue] = {}
    """what else is to be known: parameters of the network, classes that were absent, thresholds"""
    notes: tuple[str, ...] = ()
    """a line for each kind of thing that was left out"""
    shown: tuple[ReportPicture, ...] = ()

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        n = len(self.tasks)
        if len(self.matrix) != n or any(len(row) != n for row in self.matrix) or len(self.steps) != n:
            raise ValueError(f"{n} tasks need a matrix of {n} x {n} and {n} steps")
        return self

    def accuracies(self) -> NDArray[np.float64]:
        """Return B, float64 [n, n] in points, nan below the diagonal."""
        return np.array(self.matrix, np.float64)

    def aa_over_time(self) -> list[float]:
        """Return the mean accuracy over the tasks learnt so far, in points, after each step."""
        b = self.accuracies()
        return [float(b[: step + 1, step].mean()) for step in range(len(b))]


def values(figures: Mapping[str, float], n: int | None) -> Values:
    """Return figures that are all of n items; NaN becomes None."""
    return {name: Value(value=float(value), n=n) for name, value in figures.items()}


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return every figure over the seeds that have it, under the names under which it stands in each.

    The mean of none is None, and so is the standard deviation (n - 1) of fewer than two. There is an interval
    where each of these seeds drew the figure anew.
    """
    names = dict.fromkeys(name for values in rows for name in values)
    having = {name: [values[name] for values in rows if name in values] for name in names}
    return {
        name: _over_seeds(of_seeds) if isinstance(of_seeds[0], Value) else over_seeds(of_seeds)
        for name, of_seeds in having.items()
    }


def _over_seeds(of_seeds: Sequence[Value]) -> Figure:
    numbers = [value.value for value in of_seeds if value.value is not None]
    drawn = [value.drawn for value in of_seeds if value.value is not None]
    return Figure(
        mean=float(np.mean(numbers)) if numbers else None,
        sd=float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None,
        n=of_seeds[0].n,
        interval=interval(np.mean(drawn, 0)) if drawn and all(drawn) else None,
    )


def spread_of(rows: Mapping[str, Figures]) -> Figures:
    """Return how each figure differs between rows, such as families: n counts the rows that have it.

    Another generator is another draw, which no interval over images covers.
    """
    names = dict.fromkeys(name for figures in rows.values() for name in figures)
    having = {name: [Value(value=of[name].mean) for of in rows.values() if name in of] for name in names}
    means = {name: [row for row in rows if row.value is not None] for name, rows in having.items()}
    return {name: _over_seeds(of).model_copy(update={"n": len(of)}) for name, of in means.items() if of}


def summary_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the parts of the outcomes that hold figures over the seeds, by the names of `Outcome`."""
    return {part: over_seeds([getattr(outcome, part) for outcome in outcomes]) for part in _PARTS}
