"""The mean and the spread over a benchmark's runs, and how far it would move with other images."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, Field

from updater.benchmark.report.bootstrap import interval
from updater.benchmark.report.results import Figures, Power, Run, figure_of

_PARTS: Mapping[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Figures.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
"""the groups of figures, by name"""


class Interval(BaseModel):
    """The ends of an interval, for each figure that has one."""

    low: Figures = Figures()
    high: Figures = Figures()


class Summary(Figures):
    """The mean over the runs of each figure, and under `sd` its standard deviation over them (n - 1)."""

    sd: Figures = Figures()
    interval: Interval = Field(
        Interval(), description="95 % of the means over the runs lie in it where the images are drawn anew"
    )
    runs: int = Field(description="how many runs, one a seed")


def summarise(runs: Sequence[Run]) -> Summary:
    """Return mean and standard deviation (ddof 1) over runs of every figure.

    A run in which a figure is None is left out of that figure; the mean of none is None, and so is the
    deviation of fewer than two. Raises ValueError for no runs.
    """
    if not runs:
        raise ValueError("there are no runs to summarise")
    figures, around = [run.figures for run in runs], _interval(runs)
    mean = _spread(figures, "mean")
    power = Power(share=mean.power.share, low=around.low.power.share, high=around.high.power.share)
    return Summary(
        **mean.model_copy(update={"power": power}).model_dump(),
        sd=_spread(figures, "sd"),
        interval=around,
        runs=len(runs),
    )


def _interval(runs: Sequence[Run]) -> Interval:
    """Return the intervals of the means over the runs, of what every run that has the figure drew again."""
    low: dict[str, dict[str, float]] = {}
    high: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.resampled):
        having = [run for run in runs if figure_of(run.figures, name) is not None]
        if not all(name in run.resampled for run in having):
            continue
        found = interval(np.mean([run.resampled[name] for run in having], 0)) if having else None
        if found is not None:
            group, _, own = name.rpartition(".")
            low.setdefault(group, {})[own], high.setdefault(group, {})[own] = found
    return Interval(low=_grouped(low), high=_grouped(high))


def _grouped(found: Mapping[str, Mapping[str, float]]) -> Figures:
    return Figures.model_validate({**found.get("", {}), **{name: found[name] for name in found if name}})


def _spread(figures: Sequence[Figures], kind: str) -> Figures:
    parts = {
        part: {
            name: _of(kind, (getattr(getattr(f, part), name) for f in figures)) for name in model.model_fields
        }
        for part, model in _PARTS.items()
    }
    rest = {
        name: _of(kind, (getattr(f, name) for f in figures))
        for name in Figures.model_fields
        if name not in _PARTS
    }
    return Figures.model_validate(rest | parts)


def _of(kind: str, values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    if kind == "mean":
        return statistics.fmean(present) if present else None
    return statistics.stdev(present) if len(present) > 1 else None
