"""How far a figure would move with other images: percentile intervals over images drawn again.

Every network that is measured on a stream is measured on the same draws, so that draw number b of one seed
and of another may be averaged. The interval is of fresh images, the networks given: other seeds move a
figure further. Source: Efron 1979, "Bootstrap methods: another look at the jackknife".
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 1000

Counts = NDArray[np.uint16]
"""[R, n]: how often each of n images is in each of R draws"""
Values = NDArray[np.float64]
"""[R]: a figure of each draw, nan where it has none"""


class Resamples:
    """Draws of a stream's images with replacement, by whole groups, each stratum to its own number of them.

    A group that lies in several strata counts for the first.
    """

    def __init__(
        self, groups: Sequence[str], strata: Sequence[str], *, rounds: int = ROUNDS, seed: int = 0
    ) -> None:
        """groups, strata: of each image, in an order that is the same for every network."""
        first: dict[str, str] = {}
        for group, stratum in zip(groups, strata, strict=True):
            first.setdefault(group, stratum)
        self._columns = {group: column for column, group in enumerate(first)}
        self._counts = np.zeros((rounds, len(first)), np.uint16)
        rng, of = np.random.default_rng(seed), np.array(list(first.values()), str)
        for stratum in dict.fromkeys(first.values()):
            own = np.flatnonzero(of == stratum)
            self._counts[:, own] = rng.multinomial(len(own), np.full(len(own), 1 / len(own)), rounds)

    def of(self, groups: Sequence[str]) -> Counts:
        """Return how often images of these groups are drawn. Raises KeyError for an unknown group."""
        return self._counts[:, [self._columns[group] for group in groups]]


def shares(holds: ArrayLike, drawn: Counts) -> Values:
    """Return the share of the images drawn for which something holds (bool [n])."""
    return _ratios(drawn @ np.asarray(holds, np.float64), drawn.sum(1))


def aurocs(positive: ArrayLike, negative: ArrayLike, of_positive: Counts, of_negative: Counts) -> Values:
    """Return `measures.auroc` of each draw of two samples of scores, 1-D, with the draws of each."""
    higher, order = np.asarray(positive, np.float64), np.argsort(negative)
    lower = np.asarray(negative, np.float64)[order]
    below, up_to = (np.searchsorted(lower, higher, side) for side in ("left", "right"))
    reached = _running(of_negative[:, order])
    won = (of_positive * (reached[:, below] + reached[:, up_to])).sum(1)
    return _ratios(won, 2 * of_positive.sum(1, dtype=np.int64) * reached[:, -1])


def caught_shares(
    unknown: ArrayLike, known: ArrayLike, of_unknown: Counts, of_known: Counts, false_share: float = 0.05
) -> Values:
    """Return `measures.caught_at` of each draw, the threshold picked anew on the drawn images."""
    order, unknown_order = np.argsort(known), np.argsort(unknown)
    kept, turned_away = np.asarray(known)[order], np.asarray(unknown)[unknown_order]
    if not len(kept):
        return np.full(len(of_known), math.nan)
    reached, not_caught = _running(of_known[:, order]), _running(of_unknown[:, unknown_order])
    wanted = (1 - false_share - 1e-12) * reached[:, -1]
    places = (reached[:, 1:] < wanted[:, None]).sum(1).clip(max=len(kept) - 1)
    left = not_caught[np.arange(len(places)), np.searchsorted(turned_away, kept[places], "right")]
    shares = 1 - _ratios(left, not_caught[:, -1])
    shares[reached[:, -1] == 0] = math.nan
    return shares


def interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float] | None:
    """Return the percentile interval of a figure's draws, those without a value left out; None of none."""
    present = np.asarray(values, np.float64)
    present = present[np.isfinite(present)]
    if not len(present):
        return None
    low, high = np.quantile(present, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _running(counts: Counts) -> NDArray[np.int64]:
    """Return how many are drawn of the first 0..n images, int64 [R, n + 1]."""
    return np.pad(np.cumsum(counts, 1, dtype=np.int64), ((0, 0), (1, 0)))


def _ratios(part: NDArray[np.generic], whole: NDArray[np.generic]) -> Values:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.true_divide(part, whole), np.float64)
