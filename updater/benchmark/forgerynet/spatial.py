"""The spatial task: where in a picture the forgery lies.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.1.2. What is
said and what is true are compared at the grain of what is said: a map of cells against each cell's mean of
the truth.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from memory.records import REAL
from updater.benchmark.forgerynet import localizer, map_networks
from updater.benchmark.forgerynet.choices import LOCALIZER, Job
from updater.benchmark.forgerynet.measures import OF_FORGED, map_figures
from updater.benchmark.forgerynet.sights import MapResult, look_at, with_truth
from updater.benchmark.report.outcome import Outcome, Value, Values
from updater.benchmark.report.outcome import ReportPicture as Drawing
from updater.benchmark.report.plots import MapBeside, maps_beside_truths
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import Tally

_CAPTION = "The first test picture of each family: where it is forged, and where it is said to be."
_OF_REALS = ("reals_marked",)


def measure(job: Job) -> Outcome:
    """Train a maker of maps on the pictures and test it.

    Where it was trained several times, the figures are means over these. Raises LayoutError where there is no
    truth to learn or to test by.
    """
    name, _, learns = job.choices.model.partition(":")
    tally = Tally()
    items = {}
    for part, entries in (("train", job.train), ("held back", job.held_back), ("test", job.test)):
        progress = partial(job.progress, f"look at {part}")
        items[part] = with_truth(look_at(entries, job.choices.input, job.cache, tally, progress), tally)
        if part != "held back" and {item.sight.entry.label for item in items[part]} != {0, 1}:
            raise LayoutError(f"{part} needs reals, and forgeries with maps, and has not both")
    if name == LOCALIZER:
        parts = localizer.measure(job, items["train"], items["held back"], items["test"], learns)
    else:
        parts = [map_networks.measure(job, items["train"], items["test"])]
    families = [item.sight.entry.family for item in items["test"]]
    # A picture of each family, and a real one.
    places = {families[n]: (p, at, n) for p in parts[::-1] for at, n in [*enumerate(p.pictures)][::-1]}
    beside = [
        MapBeside(name, items["test"][number].sight.pixels(), part.true[at], part.predicted[at])
        for name, (part, at, number) in sorted(places.items())
    ]
    drawing = Drawing(svg=maps_beside_truths(beside), caption=_CAPTION)
    return outcome(parts, families, tally.notes()).model_copy(update={"shown": (drawing,)})


def outcome(parts: Sequence[MapResult], families: Sequence[str], notes: tuple[str, ...] = ()) -> Outcome:
    """Return the figures of maps. families: of each test picture.

    A family's are of its forgeries beside all reals; of a part, all of its own pictures count.
    """
    every, by_family = [], {}
    for part in parts:
        of = [families[number] for number in part.pictures]
        every.append(_values(part, of, range(len(of))))
        for family in sorted({*of} - {REAL}):
            at = [place for place, name in enumerate(of) if name in (REAL, family)]
            by_family[family], _ = _values(part, of, at)
    about = dict(parts[0].about) if len(parts) == 1 else {"trained": len(parts)}
    figures, zeros = (_mean(rows) for rows in zip(*every, strict=True))
    return Outcome(figures=figures, families=by_family, zeros=zeros, about=about, notes=notes)


def _values(part: MapResult, families: Sequence[str], at: Sequence[int]) -> tuple[Values, Values]:
    """Return the figures of some maps of a part, and those of the empty map."""
    forged = [families[place] != REAL for place in at]
    predicted, true = ([maps[place] for place in at] for maps in (part.predicted, part.true))
    counts = {"forged": sum(forged), "real": len(forged) - sum(forged), "all": len(forged)}
    figures, empty = map_figures(predicted, true, forged, part.threshold)
    return _count_values(figures, counts), _count_values(empty, counts)


def _count_values(figures: Mapping[str, float], counts: Mapping[str, int]) -> Values:
    def of(name: str) -> int:
        if name in _OF_REALS:
            return counts["real"]
        return counts["forged" if name in OF_FORGED or name.endswith("_forged") else "all"]

    return {
        name: Value(value=float(value) if np.isfinite(value) else None, n=of(name))
        for name, value in figures.items()
    }


def _mean(rows: Sequence[Values]) -> Values:
    """Return the mean over parts, of all the pictures that any part is of; forgeries are each in one."""
    means: Values = {}
    for name in rows[0]:
        present = [value for row in rows if (value := row[name].value) is not None]
        count = rows[0][name].n if name in _OF_REALS else sum(row[name].n or 0 for row in rows)
        means[name] = Value(value=float(np.mean(present)) if present else None, n=count)
    return means
