"""Bets on the mean of what is seen, which may be looked at after each one.

Against "the mean is at most m" a capital of 1 pays 1 + G (x - m) / (m - low) for each x in [low, 1], and
against "the mean is at least m" 1 - G (x - m) / (1 - m). Each fraction G of STAKES bets an equal part. While
the mean of x, given what came before, is on the claimed side of m, the capital is a supermartingale: it ever
reaches 1 / a with a chance of at most a (Ville's inequality; Waudby-Smith and Ramdas, Estimating means of
bounded random variables by betting, 2024). What x are before or after, and how they are distributed, does not
matter. Means of a burst of alike items are one x.

A challenger may turn bad after hours of good. So half of the capital against "at most" bets from the first x
on, and the other half is dealt over the later beginnings: n ** -LATER of it is left after the n-th.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

STAKES = (0.05, 0.15, 0.4, 0.8, 0.95)
"""The fractions G of what could be lost at most."""

_LATER = 1 / 8

LOG_20 = float(np.log(20))
"""What a capital has reached, in logs, where the other side is excluded at 95 %."""

_G = np.array(STAKES)


@dataclass
class Bets:
    """The capital for and against means of at most `bounds` (M,), each in (low, 1); for x in [low, 1]."""

    bounds: NDArray[np.float64]
    low: float = 0.0
    seen: NDArray[np.int64] = field(init=False)
    """(M,), how many x there were"""
    _above: NDArray[np.float64] = field(init=False)
    _late: NDArray[np.float64] = field(init=False)
    _below: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        shape = (len(self.bounds), len(_G))
        self.seen = np.zeros(len(self.bounds), np.int64)
        self._above, self._below = np.zeros(shape), np.zeros(shape)
        self._late = np.full(shape, -np.inf)

    def add_row(self, of: "Bets", at: int) -> None:
        """Begin one more bet, at the bound and with all that another one has seen in its row `at`."""
        for name in ("bounds", "seen", "_above", "_late", "_below"):
            row = getattr(of, name)[at : at + 1]
            setattr(self, name, np.concatenate((getattr(self, name), row)))

    def bet(self, x: float | NDArray[np.float64]) -> None:
        """Take the next x in: one for all bounds, or (M,) one for each, of which NaN says that there is none.

        Simulations give an x for each; a rollout gives one.
        """
        self.bet_above(x)
        self.bet_below(x)

    def bet_above(self, x: float | NDArray[np.float64]) -> None:
        """Bet on a mean above the bounds alone."""
        x = np.asarray(x)
        pays = _log_pays(x, self.bounds, self.low, 1.0)
        there = np.broadcast_to(~np.isnan(x), self.seen.shape)
        self.seen = self.seen + there
        number = np.maximum(self.seen, 1)
        begins = np.where(there, number**-_LATER - (number + 1.0) ** -_LATER, 0.0)
        with np.errstate(divide="ignore"):
            self._late = np.logaddexp(self._late, np.log(begins)[:, None]) + pays
        self._above = self._above + pays

    def bet_below(self, x: float | NDArray[np.float64], times: int | NDArray[np.int64] = 1) -> None:
        """Bet on a mean below the bounds alone; times: on so many equal x, one number or (M,)."""
        pays = _log_pays(np.asarray(x), self.bounds, self.low, -1.0)
        self._below = self._below + np.reshape(times, (-1, 1)) * pays

    @property
    def log_above(self) -> NDArray[np.float64]:
        """(M,), the log of the capital of the bets that the mean is above; it began at 0."""
        left = -_LATER * np.log(self.seen + 1.0)
        late = np.logaddexp(np.logaddexp.reduce(self._late, axis=1) - np.log(len(_G)), left)
        return np.asarray(np.logaddexp(_mean(self._above), late) - np.log(2))

    @property
    def log_below(self) -> NDArray[np.float64]:
        """(M,), the log of the capital of the bets that the mean is below; it began at 0."""
        return _mean(self._below)


def _log_pays(
    x: NDArray[np.float64], bounds: NDArray[np.float64], low: float, side: float
) -> NDArray[np.float64]:
    room = bounds - low if side > 0 else 1.0 - bounds
    pays = np.log1p(side * ((x - bounds) / room)[:, None] * _G)
    return np.asarray(np.where(np.isnan(pays), 0.0, pays))


def _mean(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.logaddexp.reduce(logs, axis=1) - np.log(len(_G)))


def interval(bets: Bets) -> tuple[float, float]:
    """Low and high end of the mean, among the bounds, which ascend; each end holds at any time at 95 %."""
    excluded_low, excluded_high = bets.log_above >= LOG_20, bets.log_below >= LOG_20
    low = bets.bounds[excluded_low][-1] if excluded_low.any() else bets.low
    high = bets.bounds[excluded_high][0] if excluded_high.any() else 1.0
    return float(low), float(high)
