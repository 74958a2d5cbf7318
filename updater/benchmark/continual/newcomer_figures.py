"""The newcomer's way in figures: shares of what both releases said, with intervals over groups of images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from memory.records import REAL
from updater.benchmark.continual.newcomer import Judged, Way
from updater.benchmark.report.bootstrap import Counts, Resamples, Values, aurocs, interval, shares
from updater.candidate.calibrate import reals
from updater.measures import auroc

Mask = NDArray[np.bool_]


class Figure(BaseModel):
    """A share or an AUC, 0..1: the mean over seeds, and a 95 % interval over groups of images."""

    items: int
    mean: float
    low: float
    high: float


class Both(BaseModel):
    """A figure of release 0, and of the candidate that the photographs were named for."""

    before: Figure
    after: Figure


class Figures(BaseModel):
    """What the newcomer's way gave, over its seeds."""

    seeds: int
    unknown_thresholds: tuple[tuple[float, float], ...]
    """by seed, before and after"""
    whole: dict[str, Both]
    by_source: dict[str, dict[str, Both]]
    """by source, then as `whole`: those that there are items for"""


@dataclass(frozen=True)
class _Share:
    """The share of some items for which something holds."""

    of: Callable[[Judged], Mask]
    holds: Callable[[Judged], Mask]

    def value(self, judged: Judged, within: Mask) -> float:
        return float(self.holds(judged)[self.of(judged) & within].mean())

    def drawn(self, judged: Judged, within: Mask, counts: Counts) -> Values:
        mine = self.of(judged) & within
        return shares(self.holds(judged)[mine], counts[:, mine])


@dataclass(frozen=True)
class _Auc:
    """The AUC of the unknown score: forgeries of the newcomers against their reals."""

    def of(self, judged: Judged) -> Mask:
        return _new(judged)

    def value(self, judged: Judged, within: Mask) -> float:
        fake, real = _forgeries(judged) & within, _others(judged) & within
        return auroc(judged.unknown_score[fake], judged.unknown_score[real])

    def drawn(self, judged: Judged, within: Mask, counts: Counts) -> Values:
        fake, real = _forgeries(judged) & within, _others(judged) & within
        scores = judged.unknown_score
        return aurocs(scores[fake], scores[real], counts[:, fake], counts[:, real])


def _new(judged: Judged) -> Mask:
    return np.asarray(judged.sources != "")


def _others(judged: Judged) -> Mask:
    return _new(judged) & reals(judged.families)


def _forgeries(judged: Judged) -> Mask:
    return _new(judged) & ~reals(judged.families)


def _own_reals(judged: Judged) -> Mask:
    return ~_new(judged) & reals(judged.families)


def _own_fakes(judged: Judged) -> Mask:
    return ~_new(judged) & ~reals(judged.families)


def _called(label: str) -> Callable[[Judged], Mask]:
    return lambda judged: np.asarray(judged.labels == label)


def _not_real(judged: Judged) -> Mask:
    return np.asarray(judged.labels != REAL)


def _named(judged: Judged) -> Mask:
    return np.asarray((judged.labels == "fake") & (judged.named == judged.families))


_OF_NEWCOMERS: dict[str, _Share | _Auc] = {
    "others_unknown": _Share(_others, _called("unknown")),
    "others_fake": _Share(_others, _called("fake")),
    "others_not_real": _Share(_others, _not_real),
    "forgeries_not_real": _Share(_forgeries, _not_real),
    "forgeries_auc": _Auc(),
}
_OF_OWN: dict[str, _Share | _Auc] = {
    "own_reals_unknown": _Share(_own_reals, _called("unknown")),
    "own_reals_fake": _Share(_own_reals, _called("fake")),
    "known_fakes_not_real": _Share(_own_fakes, _not_real),
    "known_fakes_unknown": _Share(_own_fakes, _called("unknown")),
    "known_fakes_named": _Share(_own_fakes, _named),
}


def figures(ways: Sequence[Way]) -> Figures:
    """Sum up the same way gone with several seeds, at least one."""
    groups = [f"{s}/{g}" for way in ways for s, g in zip(way.before.sources, way.before.groups, strict=True)]
    strata = [
        f"{s}/{f}" for way in ways for s, f in zip(way.before.sources, way.before.families, strict=True)
    ]
    resamples = Resamples(groups, strata)
    sources = sorted({str(source) for way in ways for source in way.before.sources} - {""})
    return Figures(
        seeds=len(ways),
        unknown_thresholds=tuple(
            (a.unknown_threshold, b.unknown_threshold) for a, b in (w.gates for w in ways)
        ),
        whole={
            name: _both(measure, ways, resamples, None) for name, measure in (_OF_NEWCOMERS | _OF_OWN).items()
        },
        by_source={
            source: {
                name: both
                for name, measure in _OF_NEWCOMERS.items()
                if np.isfinite((both := _both(measure, ways, resamples, source)).after.mean)
            }
            for source in sources
        },
    )


def _both(measure: _Share | _Auc, ways: Sequence[Way], resamples: Resamples, source: str | None) -> Both:
    return Both(
        before=_figure(measure, [way.before for way in ways], resamples, source),
        after=_figure(measure, [way.after for way in ways], resamples, source),
    )


def _figure(
    measure: _Share | _Auc, of_seeds: Sequence[Judged], resamples: Resamples, source: str | None
) -> Figure:
    values, drawn, items = [], [], 0
    for judged in of_seeds:
        within = np.asarray(judged.sources == source) if source else np.ones(len(judged.labels), bool)
        if not (measure.of(judged) & within).any():
            return Figure(items=0, mean=np.nan, low=np.nan, high=np.nan)
        items += int((measure.of(judged) & within).sum())
        counts = resamples.of([f"{s}/{g}" for s, g in zip(judged.sources, judged.groups, strict=True)])
        values.append(measure.value(judged, within))
        drawn.append(measure.drawn(judged, within, counts))
    low, high = interval(np.mean(drawn, 0)) or (np.nan, np.nan)
    return Figure(items=items, mean=float(np.mean(values)), low=low, high=high)
