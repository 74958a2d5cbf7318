"""Bets on the mean of a stream, which may be looked at after each value.

Against "the mean is at most m" a capital of 1 pays 1 + G (x - m) / (m - low) for each x in [low, 1], and
against "the mean is at least m" 1 - G (x - m) / (1 - m). Each fraction G bets an equal part. While
the mean of x, given what came before, is on the claimed side of m, the capital is a supermartingale: it ever
reaches 1 / a with a chance of at most a (Ville's inequality; Waudby-Smith and Ramdas, Estimating means of
bounded random variables by betting, 2024). What x are before or after, and how they are distributed, does not
matter. Means of a burst of alike items are one x.

A challenger may turn bad after hours of good, and most likely where a step begins. So half of the capital
against "at most" bets from the first x on. The other half is kept aside and dealt over later beginnings: a
quarter of what is left where a step begins, and at each x so much that, without steps, n ** -LATER of it is
left after the n-th. A part that begins at any time is the same supermartingale from there on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

ABOVE, BELOW = (0.05, 0.15, 0.4, 0.8, 0.95), (0.2, 0.6, 0.95)
"""The fractions G of what could be lost at most. A share far below its bound, as of a healthy challenger, is
shown soonest by large ones, 1 - mean / m of single items."""

_LATER, _AT_STEP = 1 / 8, 1 / 4

LOG_20 = float(np.log(20))
"""What a capital has reached, in logs, where the other side is excluded at 95 %."""

_ABOVE, _BELOW = np.array(ABOVE), np.array(BELOW)


@dataclass
class Bets:
    """The capital for and against means of at most `bounds` (M,), each in (low, 1); for x in [low, 1]."""

    bounds: NDArray[np.float64]
    low: float = 0.0
    seen: NDArray[np.int64] = field(init=False)
    """(M,), how many x there were"""
    _above: NDArray[np.float64] = field(init=False)
    _late: NDArray[np.float64] = field(init=False)
    _left: NDArray[np.float64] = field(init=False)
    """of the half that is kept aside"""
    _below: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        bounds = len(self.bounds)
        self.seen, self._left = np.zeros(bounds, np.int64), np.ones(bounds)
        self._above, self._below = (np.zeros((bounds, len(side))) for side in (_ABOVE, _BELOW))
        self._late = np.full((bounds, len(_ABOVE)), -np.inf)

    def add_rows(self, of: "Bets", rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Go on with some bets of another, too: at their bounds, and with all that they have seen."""
        for name in ("bounds", "seen", "_above", "_late", "_left", "_below"):
            setattr(self, name, np.concatenate((getattr(self, name), getattr(of, name)[rows])))

    def bet(self, x: float | NDArray[np.float64]) -> None:
        """Take the next x in: one for all bounds, or (M,) one for each, of which NaN says that there is none.

        Simulations give an x for each; a rollout gives one.
        """
        self.bet_above(x)
        self.bet_below(x)

    def bet_above(self, x: float | NDArray[np.float64]) -> None:
        """Bet on a mean above the bounds alone."""
        x = np.asarray(x)
        there = np.broadcast_to(~np.isnan(x), self.seen.shape)
        self.seen = self.seen + there
        number = np.maximum(self.seen, 1)
        self._deal(np.where(there, 1 - (number / (number + 1.0)) ** _LATER, 0.0))
        pays = _log_pays(x, self.bounds, self.low, _ABOVE)
        self._late, self._above = self._late + pays, self._above + pays

    def begin_step(self, where: NDArray[np.bool_] | bool = True) -> None:
        """Let a part of what is kept aside bet from the next x on; where: (M,), for which of the bounds."""
        self._deal(np.where(where, _AT_STEP, np.zeros(len(self.bounds))))

    def _deal(self, part: NDArray[np.float64]) -> None:
        with np.errstate(divide="ignore"):
            self._late = np.logaddexp(self._late, np.log(part * self._left)[:, None])
        self._left = (1 - part) * self._left

    def bet_below(self, x: float | NDArray[np.float64], times: int | NDArray[np.int64] = 1) -> None:
        """Bet on a mean below the bounds alone; times: on so many equal x, one number or (M,)."""
        pays = _log_pays(np.asarray(x), self.bounds, self.low, -_BELOW)
        self._below = self._below + np.reshape(times, (-1, 1)) * pays

    @property
    def log_above(self) -> NDArray[np.float64]:
        """(M,), the log of the capital of the bets that the mean is above; it began at 0."""
        late = np.logaddexp(_mean(self._late), np.log(self._left))
        return np.asarray(np.logaddexp(_mean(self._above), late) - np.log(2))

    @property
    def log_below(self) -> NDArray[np.float64]:
        """(M,), the log of the capital of the bets that the mean is below; it began at 0."""
        return _mean(self._below)


@cache
def bets_to_pass(bound: float, share: float) -> int | None:
    """How many x show a mean below the bound at 95 %, on average, where a share of them are 1 and others 0.

    A share below 0 is of -1. None where the mean is not below, or where no fraction G gains.
    """
    lost = np.log1p(-_BELOW * (np.sign(share) - bound) / (1 - bound))
    gains = abs(share) * lost + (1 - abs(share)) * np.log1p(_BELOW * bound / (1 - bound))
    if share >= bound or gains.max() <= 0:
        return None
    few, many = 0, 1
    while _mean(many * gains[None])[0] < LOG_20:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if _mean(middle * gains[None])[0] >= LOG_20 else (middle, many)
    return many


def _log_pays(
    x: NDArray[np.float64], bounds: NDArray[np.float64], low: float, stakes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(M, stakes), the logs of what one x pays: stakes above 0 are on a mean above, others on one below."""
    room = bounds - low if stakes[0] > 0 else 1.0 - bounds
    pays = np.log1p(((x - bounds) / room)[:, None] * stakes)
    return np.asarray(np.where(np.isnan(pays), 0.0, pays))


def _mean(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.logaddexp.reduce(logs, axis=1) - np.log(logs.shape[1]))


def interval(bets: Bets) -> tuple[float, float]:
    """Low and high end of the mean, among the bounds, which ascend; each end holds at any time at 95 %."""
    excluded_low, excluded_high = bets.log_above >= LOG_20, bets.log_below >= LOG_20
    low = bets.bounds[excluded_low][-1] if excluded_low.any() else bets.low
    high = bets.bounds[excluded_high][0] if excluded_high.any() else 1.0
    return float(low), float(high)
