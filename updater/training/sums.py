"""Sums of items by class and source, and linear discriminants solved from them: the learner of the stream.

Streaming linear discriminant analysis: Hayes and Kanan 2020, "Lifelong machine learning with deep streaming
linear discriminant analysis". What is learnt of an item is added to sums, and can be subtracted again. Rows
are rounded to a grid on which float64 adds and multiplies them without rounding. So sums are equal to the bit
in any order, and sums without a source are those of a stream that never had it.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

GRID = 2.0**-11
"""of rows, whose values are within 16: sums of products are whole multiples of its square, of which float64
holds those of 8 million items"""
MOST_ITEMS = 2**23
MOST_SOURCES = 32
"""that have sums of their own, the largest; 1.8 MB each at 662 features"""
POOLED = ""
"""the name by which all smaller sources have sums together"""
_FULL = 16
"""items of a class from which a source weighs as much as any other"""

_ARRAYS = ("counts", "shares", "sums", "moments")


class StatisticsError(ValueError):
    """Nothing can be solved from these sums. Fatal; one line names the labels or imports that help."""


@dataclass(frozen=True)
class Statistics:
    """Sums of n items of D numbers each, in G strata: pairs of class and source. Immutable."""

    strata: tuple[tuple[str, str], ...]
    """class and source, sorted"""
    counts: NDArray[np.int64]
    """[G], items"""
    shares: NDArray[np.int64]
    """[G], what each weighs in its class: its items, of a source at most 16"""
    sums: NDArray[np.float64]
    """[G, D]"""
    moments: NDArray[np.float64]
    """[S, D (D + 1) / 2], upper triangles: sums of products of rows, of each of the `sources`"""

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names of the S sources, sorted."""
        return tuple(sorted({source for _, source in self.strata}))

    @cached_property
    def families(self) -> tuple[str, ...]:
        """Names of the classes, sorted."""
        return tuple(sorted({family for family, _ in self.strata}))

    @property
    def own(self) -> set[str]:
        """Names of the sources that have sums of their own."""
        return set(self.sources) - {POOLED}

    @property
    def width(self) -> int:
        """D."""
        return int(self.sums.shape[1])

    def plus(self, other: "Statistics") -> "Statistics":
        """Return the sums of both together, of rows of one width. A source of both is one source."""
        return _combine(self, other, 1)

    def minus(self, other: "Statistics") -> "Statistics":
        """Return the sums without the items of others, all of which are among these."""
        return _combine(self, other, -1)

    def without(self, sources: Collection[str]) -> "Statistics":
        """Return the sums without these sources."""
        at = [g for g, (_, source) in enumerate(self.strata) if source not in sources]
        kept = [s for s, source in enumerate(self.sources) if source not in sources]
        return Statistics(
            tuple(self.strata[g] for g in at),
            self.counts[at],
            self.shares[at],
            self.sums[at],
            self.moments[kept],
        )

    def collapse(self, source: str) -> "Statistics":
        """Return sums that solve alike, as those of one source that weighs as much as all of these.

        For a release that goes to others: what single sources have added can no longer be subtracted.
        """
        covariance, weight = self.covariance()
        shares = Counter[str]()
        for (family, _), share in zip(self.strata, self.shares.tolist(), strict=True):
            shares[family] += share
        names = self.families
        means = self.means(names)
        of = np.array([shares[name] for name in names])
        count = round(weight * _FULL)
        counts = np.maximum(of, 1)
        moment = covariance * (counts.sum() - len(names)) + (means.T * counts) @ means
        return Statistics(
            tuple((name, source) for name in names),
            counts,
            of * count // max(int(of.max()), 1),
            means * counts[:, None],
            moment[np.triu_indices(self.width)][None],
        )

    def means(self, classes: Sequence[str]) -> NDArray[np.float64]:
        """Return the mean of each of these classes, float64 [K, D]: every source of it weighs the same."""
        place = {name: k for k, name in enumerate(classes)}
        total, weight = np.zeros((len(classes), self.width)), np.zeros(len(classes))
        for g, (family, _) in enumerate(self.strata):
            if family in place:
                total[place[family]] += self.shares[g] * self.sums[g] / self.counts[g]
                weight[place[family]] += self.shares[g]
        return np.asarray(total / weight[:, None])

    def covariance(self) -> tuple[NDArray[np.float64], float]:
        """Return the covariance of a class, float64 [D, D], and how many full sources it is of.

        It is that within class and source, and of the sources' means about their class's mean: what is
        new lies as far from its class as known sources do. Every source weighs the same. Of how far sources
        lie apart, a class of one source says nothing. Raises StatisticsError where no stratum has two items.
        """
        place = {source: s for s, source in enumerate(self.sources)}
        of = np.array([place[source] for _, source in self.strata], np.int64)
        free = np.bincount(of, self.counts, len(place)) - np.bincount(of, minlength=len(place))
        full = np.zeros(len(place))
        np.maximum.at(full, of, self.shares)
        own = np.minimum(free, full) / _FULL
        weight = float(own.sum())
        if not weight:
            raise StatisticsError(
                "no class has two items of one source, which say how items of a class differ: label more"
            )
        share = own / np.maximum(free, 1) / weight
        total = np.zeros((self.width, self.width))
        total[np.triu_indices(self.width)] = share @ self.moments
        total += np.triu(total, 1).T
        total -= (self.sums.T * (share[of] / self.counts)) @ self.sums
        classes = np.array([self.families.index(family) for family, _ in self.strata], np.int64)
        apart = self.sums / self.counts[:, None] - self.means(self.families)[classes]
        sources = int((np.bincount(classes) > 1).sum())
        weights = self.shares / np.bincount(classes, self.shares)[classes] / max(sources, 1)
        return total + (apart.T * weights) @ apart, weight

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays by name, as safetensors holds them; `statistics_of` reads them back."""
        names = np.frombuffer(json.dumps(self.strata).encode(), np.uint8)
        return {"strata": names, **{name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}}


def statistics_of(tensors: Mapping[str, NDArray[np.generic]]) -> Statistics:
    """Read back the tensors of `Statistics.tensors`. Raises StatisticsError for arrays that are none."""
    try:
        strata = tuple((str(f), str(s)) for f, s in json.loads(tensors["strata"].tobytes()))
        statistics = Statistics(strata, *(tensors[name] for name in _ARRAYS))  # type: ignore[arg-type]
        width = statistics.width
        expected = ((len(strata),), (len(strata),), (len(strata), width))
        whole = (statistics.counts.shape, statistics.shares.shape, statistics.sums.shape) == expected
        if not whole or statistics.moments.shape != (len(statistics.sources), width * (width + 1) // 2):
            raise ValueError("arrays do not fit together")
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise StatisticsError(f"the release's statistics cannot be read: {error}") from error
    return statistics


def on_grid(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return rows float64 [n, D], within 16, rounded to the grid on which sums are exact."""
    return np.asarray(np.rint(rows.astype(np.float64) / GRID) * GRID)


def sums_of(
    rows: NDArray[np.float64],
    families: Sequence[str],
    sources: Sequence[str],
    own: Collection[str] | None = None,
) -> Statistics:
    """Return the sums of n items: their rows on the grid, float64 [n, D], their classes and sources.

    own: the sources that have sums of their own; None: the 32 largest of at least 16 items. Raises
    StatisticsError for numbers that are none, and for more items than float64 sums exactly.
    """
    if len(rows) > MOST_ITEMS:
        raise StatisticsError(f"{len(rows)} items are more than the {MOST_ITEMS} that can be summed exactly")
    if not np.isfinite(rows).all():
        raise StatisticsError("the features of an item are no numbers: drop the exemplar, or import it anew")
    if own is None:
        largest = Counter(sources).most_common(MOST_SOURCES)
        own = {name for name, count in largest if count >= _FULL}
    names = [name if name in own else POOLED for name in sources]
    pairs = list(zip(families, names, strict=True))
    strata = tuple(sorted(set(pairs)))
    place = {pair: g for g, pair in enumerate(strata)}
    of = np.array([place[pair] for pair in pairs], np.int64)
    sums = np.zeros((len(strata), rows.shape[1]))
    np.add.at(sums, of, rows)
    full: Counter[tuple[str, str]] = Counter()
    for (family, source), count in Counter(zip(families, sources, strict=True)).items():
        full[family, source if source in own else POOLED] += min(count, _FULL)
    upper, which = np.triu_indices(rows.shape[1]), np.array(names)
    moments = [(rows[which == name].T @ rows[which == name])[upper] for name in sorted(set(names))]
    return Statistics(
        strata,
        np.bincount(of, minlength=len(strata)).astype(np.int64),
        np.array([full[pair] for pair in strata], np.int64),
        sums,
        np.array(moments).reshape(len(moments), len(upper[0])),
    )


def _combine(first: Statistics, other: Statistics, sign: int) -> Statistics:
    if first.strata and other.strata and first.width != other.width:
        raise StatisticsError(f"sums of {first.width} features and of {other.width} do not go together")
    parts = ((first, 1), (other, sign))
    counts: dict[tuple[str, str], int] = {}
    shares: dict[tuple[str, str], int] = {}
    sums: dict[tuple[str, str], NDArray[np.float64]] = {}
    moments: dict[str, NDArray[np.float64]] = {}
    for part, times in parts:
        for g, pair in enumerate(part.strata):
            met = pair in counts
            counts[pair] = counts.get(pair, 0) + times * int(part.counts[g])
            total = shares.get(pair, 0) + times * int(part.shares[g])
            # Which of the pooled sources had more items than count is not known: with items a share is left.
            shares[pair] = min(counts[pair], _FULL) if met and pair[1] != POOLED else max(total, 1)
            sums[pair] = sums.get(pair, 0.0) + times * part.sums[g]
        for s, source in enumerate(part.sources):
            moments[source] = moments.get(source, 0.0) + times * part.moments[s]
    if wrong := [pair for pair, count in counts.items() if count < 0]:
        raise StatisticsError(f"more items of {wrong[0]} are to be subtracted than there are")
    kept = tuple(sorted(pair for pair, count in counts.items() if count))
    sources, width = sorted({source for _, source in kept}), max(first.sums.shape[1], other.sums.shape[1])
    return Statistics(
        kept,
        np.array([counts[pair] for pair in kept], np.int64),
        np.array([shares[pair] for pair in kept], np.int64),
        np.array([sums[pair] for pair in kept]).reshape(len(kept), width),
        np.array([moments[source] for source in sources]).reshape(len(sources), width * (width + 1) // 2),
    )
