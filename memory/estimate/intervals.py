"""The interval for the share of verdicts that are right, by an audit: at 95 %, at any time. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory.estimate.records import Share

LEVEL = 0.95
_LOG_40 = math.log(2 / (1 - LEVEL))
"""of each end's error, in logs"""

_STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])


@dataclass(frozen=True)
class Residual:
    """An audited verdict's truth (1 where it was right, else 0) minus its probability to be right.

    low and high differ where a person could not say: they are those of wrong and of right.
    """

    low: float
    high: float
    chance: float
    """with which it was drawn, in (0, 1]"""


def correct(items: int, right: float, audited: Sequence[Residual], lowest_chance: float) -> Share:
    """Estimate it by probabilities that an audit corrects; holds at any time, calibrated or not.

    lowest_chance: of all items, whether drawn or not. The estimate is prediction-powered (Angelopoulos et
    al., Prediction-powered inference, 2023): the sum of the probabilities plus that of residual / chance of
    the audited. Only the draw is random: nothing is asked of the stream. Against "the residuals of all items
    sum to R" a capital is the product of 1 + G c residual / chance over the audited, times exp(-G c R), where
    c is the lowest chance. An item's factor has the mean 1 + G c residual <= exp(G c residual), so the
    capital is a supermartingale while R is true, and Ville's inequality bounds it at any time (Waudby-Smith
    and Ramdas, Estimating means of bounded random variables by betting, 2024). Each G bets an equal part.
    """
    chances = np.array([each.chance for each in audited])
    low = np.array([each.low for each in audited]) / chances
    high = np.array([each.high for each in audited]) / chances
    value = right + float((low + high).sum()) / 2
    least, most = _least(low, lowest_chance), -_least(-high, lowest_chance)
    return Share(*(min(1.0, max(0.0, count / items)) for count in (value, right + least, right + most)))


def _least(weighted: NDArray[np.float64], lowest_chance: float) -> float:
    """Return the lowest sum of all residuals that is not excluded; weighted: residual / chance (n,)."""
    capital = np.log1p(np.outer(_STAKES, lowest_chance * weighted)).sum(axis=1)

    def log_capital(total: float) -> float:
        return float(np.logaddexp.reduce(capital - _STAKES * lowest_chance * total)) - math.log(len(_STAKES))

    above, step = float(weighted.sum()), 1 / lowest_chance  # there the capital is 1 at most
    while log_capital(below := above - step) < _LOG_40:
        step *= 2
    for _ in range(60):
        middle = (below + above) / 2
        below, above = (middle, above) if log_capital(middle) >= _LOG_40 else (below, middle)
    return below
