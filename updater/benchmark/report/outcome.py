"""What a task found with one seed, and what several seeds found together."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, JsonValue

_EXTRA = ConfigDict(frozen=True, extra="forbid")


class Value(BaseModel):
    """A figure of one seed; None where the data has nothing to measure it by."""

    model_config = _EXTRA

    value: float | None
    n: int
    """how many pictures or videos it is of"""


class Figure(BaseModel):
    """A figure over seeds."""

    model_config = _EXTRA

    mean: float | None
    sd: float | None
    """over seeds; None of a single one"""
    n: int
    """how many pictures or videos it is of, with each seed"""


Values = dict[str, Value]
Table = dict[str, dict[str, Values]]
"""what was trained on → what was tested on → figures"""


class Shown(BaseModel):
    """A picture of the page: an SVG, and what it shows in one sentence."""

    model_config = _EXTRA

    svg: str
    caption: str


class Outcome(BaseModel):
    """What a task found with one seed."""

    model_config = _EXTRA

    figures: Values = {}
    families: dict[str, Values] = {}
    """the same of each family's forgeries beside all reals"""
    zeros: Values = {}
    """figures of the map that is 0 everywhere, of the spatial task"""
    table: Table = {}
    """of the protocol cross, and of DeeperForensics' trainings and tests"""
    by_distortion: dict[str, Values] = {}
    """by TYPE:LEVEL, of clips under that distortion"""
    about: dict[str, JsonValue] = {}
    """what else is to be known: parameters of the network, classes that were absent, thresholds"""
    notes: tuple[str, ...] = ()
    """a line for each kind of thing that was left out"""
    shown: tuple[Shown, ...] = ()


def values(figures: Mapping[str, float], n: int) -> Values:
    """Return figures that are all of n items; what is no number is None."""
    return {
        name: Value(value=float(value) if math.isfinite(value) else None, n=n)
        for name, value in figures.items()
    }


def over_seeds(each: Sequence[Values]) -> dict[str, Figure]:
    """Return every figure's mean and standard deviation over the seeds that have it."""
    found = {}
    for name in _names(each):
        of_it = [one[name] for one in each if name in one]
        present = [one.value for one in of_it if one.value is not None]
        found[name] = Figure(
            mean=float(np.mean(present)) if present else None,
            sd=float(np.std(present, ddof=1)) if len(present) > 1 else None,
            n=of_it[0].n,
        )
    return found


def nested_over_seeds(each: Sequence[Mapping[str, Values]]) -> dict[str, dict[str, Figure]]:
    """Return figures over seeds where they stand under names, such as those of families."""
    return {name: over_seeds([one[name] for one in each if name in one]) for name in _names(each)}


def table_over_seeds(each: Sequence[Table]) -> dict[str, dict[str, dict[str, Figure]]]:
    """Return the figures of a table of training and test over seeds."""
    return {name: nested_over_seeds([one[name] for one in each if name in one]) for name in _names(each)}


def _names(each: Sequence[Mapping[str, object]]) -> Iterator[str]:
    return iter(dict.fromkeys(name for one in each for name in one))
