"""The spatial task: where in a picture the forgery lies.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.1.2. What is
said and what is true are compared at the grain of what is said: a map of cells against each cell's mean of
the truth.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from memory.records import REAL
from updater.benchmark.forgerynet import localizer, map_networks
from updater.benchmark.forgerynet.choices import ChoiceError, Job
from updater.benchmark.forgerynet.measures import map_figures
from updater.benchmark.forgerynet.sights import MapItem, MapResult, sights, with_truth
from updater.benchmark.networks import maps
from updater.benchmark.networks.maps import DECODERS, HRNET, REGRESSION
from updater.benchmark.report.outcome import Outcome, Value, Values
from updater.benchmark.report.outcome import ReportPicture as Drawing
from updater.benchmark.report.plots import MapBeside, maps_beside_truths
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import Tally

Method = Callable[[Job, Sequence[MapItem], Sequence[MapItem], Sequence[MapItem], str], list[MapResult]]
"""takes the job, training, held-back and test pictures, and what stands behind ":" in the model's name"""

METHODS: Mapping[str, Method] = {
    "localizer": localizer.measure,
    **dict.fromkeys((*DECODERS, REGRESSION, HRNET), map_networks.measure),
}
"""what makes maps, by what stands before ":" """

_CAPTION = "The first test picture of each family: where it is forged, and where it is said to be."
_OF_FORGED = ("iou", "f1", "pixel_auc")
_OF_REALS = ("reals_marked",)


def check(model: str) -> None:
    """Raise ChoiceError, NetworkError or BackboneError for a model that makes no maps."""
    name, _, rest = model.partition(":")
    if name not in METHODS:
        raise ChoiceError(f"--model {model or repr(model)} makes no maps: choose of {', '.join(METHODS)}")
    if METHODS[name] is localizer.measure:
        localizer.check(rest)
    else:
        maps.check(model)


def measure(job: Job) -> Outcome:
    """Train a maker of maps on the pictures and test it.

    Where it was trained several times, the figures are means over these. Raises what `check` raises, and
    LayoutError where there is no truth to learn or to test by.
    """
    check(job.choices.model)
    name, _, rest = job.choices.model.partition(":")
    if job.choices.protocol != "intra":
        raise ChoiceError("--task spatial has the protocol intra alone; try --model localizer:left-out")
    tally = Tally()
    items = {}
    for part, entries in (("train", job.train), ("held back", job.held_back), ("test", job.test)):
        progress = partial(job.progress, f"look at {part}")
        items[part] = with_truth(sights(entries, job.choices.input, job.cache, tally, progress), tally)
        if part != "held back" and {item.sight.entry.label for item in items[part]} != {0, 1}:
            raise LayoutError(f"{part} needs reals, and forgeries with maps, and has not both")
    parts = METHODS[name](job, items["train"], items["held back"], items["test"], rest)
    families = [item.sight.entry.family for item in items["test"]]
    beside = _beside(parts, items["test"], families)
    drawing = Drawing(svg=maps_beside_truths(beside), caption=_CAPTION)
    return outcome(parts, families, tally.notes()).model_copy(update={"shown": (drawing,)})


def _beside(parts: Sequence[MapResult], test: Sequence[MapItem], families: Sequence[str]) -> list[MapBeside]:
    """Choose a picture of each family, and a real one."""
    examples: dict[str, MapBeside] = {}
    for part in parts:
        for place, number in enumerate(part.pictures):
            if (name := families[number]) not in examples:
                pixels = test[number].pixels()
                examples[name] = MapBeside(name, pixels, part.true[place], part.predicted[place])
    return [examples[name] for name in sorted(examples)]


def outcome(parts: Sequence[MapResult], families: Sequence[str], notes: tuple[str, ...] = ()) -> Outcome:
    """Return the figures of maps. families: of each test picture.

    A family's are of its forgeries beside all reals; of a part, all of its own pictures count.
    """
    every: list[Values] = []
    zeros: list[Values] = []
    by_family: dict[str, Values] = {}
    for part in parts:
        of = [families[number] for number in part.pictures]
        values, empty = _values(part, of)
        every.append(values)
        zeros.append(empty)
        for family in sorted({*of} - {REAL}):
            at = [place for place, name in enumerate(of) if name in (REAL, family)]
            chosen = MapResult(
                tuple(part.pictures[place] for place in at),
                tuple(part.predicted[place] for place in at),
                tuple(part.true[place] for place in at),
                part.threshold,
                {},
            )
            by_family[family], _ = _values(chosen, [of[place] for place in at])
    about = dict(parts[0].about) if len(parts) == 1 else {"trained": len(parts)}
    return Outcome(figures=_mean(every), families=by_family, zeros=_mean(zeros), about=about, notes=notes)


def _values(part: MapResult, families: Sequence[str]) -> tuple[Values, Values]:
    forged = [family != REAL for family in families]
    figures, empty = map_figures(part.predicted, part.true, forged, part.threshold)
    counts = {"forged": sum(forged), "real": len(forged) - sum(forged), "all": len(forged)}
    return _count_values(figures, counts), _count_values(empty, counts)


def _count_values(figures: Mapping[str, float], counts: Mapping[str, int]) -> Values:
    def of(name: str) -> int:
        if name in _OF_REALS:
            return counts["real"]
        return counts["forged" if name in _OF_FORGED or name.endswith("_forged") else "all"]

    return {
        name: Value(value=float(value) if np.isfinite(value) else None, n=of(name))
        for name, value in figures.items()
    }


def _mean(rows: Sequence[Values]) -> Values:
    """Return the mean over parts, of all the pictures that any part is of; forgeries are each in one."""
    means: Values = {}
    for name in rows[0]:
        present = [row[name].value for row in rows if row[name].value is not None]
        of_reals = name in _OF_REALS or len(rows) == 1
        means[name] = Value(
            value=float(np.mean([value for value in present if value is not None])) if present else None,
            n=rows[0][name].n if of_reals else sum(row[name].n for row in rows),
        )
    return means
