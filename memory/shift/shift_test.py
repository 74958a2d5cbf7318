"""Whether a source's scores have shifted upwards against its own earlier ones: a test by betting.

The p-value of each score is its rank among those kept of the ones before it (Vovk, Gammerman and Shafer,
Algorithmic Learning in a Random World, 2005, section 2.5). While the scores are draws of one distribution,
the p-values are independent and uniform, so that what a bet on small ones wins is a martingale that begins
at 1. It reaches 1 / a with a chance of at most a, however long the stream (Ville's inequality): an alarm may
be looked for after each item.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy.special import ndtri

SHIFTS = (0.25, 0.5, 1.0, 1.5, 2.0)
"""Shifts of a normal score that are bet on, in standard deviations; each gets an equal part of the capital.
At an item AUC of A the shift is sqrt(2) * ndtri(A): 0.60 has 0.36 and 0.90 has 1.8."""

_LATER = 1 / 8
"""How the capital is dealt over the times at which the shift may begin: n ** -_LATER of it is left for those
after the n-th. So small an exponent leaves something for late ones."""

_SHARE = 1 / 2
"""The same for tests: s ** -_SHARE of the budget is left for those after the s-th."""


def share_of_budget(number: int) -> float:
    """Return which share of a budget for false alarms the test of this number gets, from 1; they sum to 1."""
    return float(number**-_SHARE - (number + 1) ** -_SHARE)


@dataclass
class ShiftTest:
    """The test of one source: scores that were kept, and what the bets on a shift have won.

    seed: of what is drawn, which whoever sends items must not know. gather: how many scores are kept before
    the first bet; most: how many are kept at all, at least as many. Of more, one is left out at random, the
    newest like any other: so what is kept stays a draw of the same distribution whatever the p-values were,
    and older ones are forgotten, on average after `most` items.
    """

    seed: int
    gather: int
    most: int
    kept: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """[n], in no order"""
    seen: int = 0
    bets: int = 0
    log_capital: NDArray[np.float64] = field(default_factory=lambda: np.full(len(SHIFTS), -np.inf))
    """[len(SHIFTS)], of what each has bet so far; what is left for later beginnings is not in it"""

    def observe(self, score: float) -> float | None:
        """Take the next score in; return its p-value in (0, 1), small for a high one; None: only gathered."""
        uniform, place = self._draw()
        self.seen += 1
        p = None
        if len(self.kept) >= self.gather:
            above, equal = int((self.kept > score).sum()), int((self.kept == score).sum())
            p = (above + uniform * (equal + 1)) / (len(self.kept) + 1)
            self._bet(p)
        self._keep(score, place)
        return p

    def _draw(self) -> tuple[float, int]:
        """Return a number in (0, 1) and one in 0..most: a keyed digest, a tenth of a generator's cost."""
        drawn = blake2b(self.seen.to_bytes(8), key=self.seed.to_bytes(8), digest_size=16).digest()
        uniform = (int.from_bytes(drawn[:6]) + 0.5) / 2**48
        return uniform, int.from_bytes(drawn[8:]) % (self.most + 1)

    def _bet(self, p: float) -> None:
        self.bets += 1
        begins = self.bets**-_LATER - (self.bets + 1) ** -_LATER
        self.log_capital = np.logaddexp(self.log_capital, np.log(begins / len(SHIFTS))) + log_bets(p)

    def _keep(self, score: float, place: int) -> None:
        if len(self.kept) < self.most:
            self.kept = np.append(self.kept, np.float32(score))
        elif place < self.most:  # else it is the newest that is left out
            self.kept[place] = score

    @property
    def log_e(self) -> float:
        """The natural logarithm of the capital, which began at 1."""
        later = -_LATER * np.log(self.bets + 1.0)
        return float(np.logaddexp(np.logaddexp.reduce(self.log_capital), later))

    def to_bytes(self) -> bytes:
        """Return all of it as safetensors."""
        numbers = np.array([self.seed, self.gather, self.most, self.seen, self.bets], np.int64)
        return save({"numbers": numbers, "kept": self.kept, "log_capital": self.log_capital})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` gave."""
        arrays = load(data)
        seed, gather, most, seen, bets = (int(number) for number in arrays["numbers"])
        return cls(seed, gather, most, arrays["kept"].copy(), seen, bets, arrays["log_capital"].copy())


def log_bets(p: float) -> NDArray[np.float64]:
    """Return for each of SHIFTS the log of the bet's pay at a p-value: its mean pay over uniform ones is 1.

    It is the likelihood ratio of a normal score that is shifted by so much.
    """
    shifts = np.array(SHIFTS)
    return np.asarray(shifts * -ndtri(p) - shifts**2 / 2)


def began(p_values: NDArray[np.float64]) -> int:
    """Return where among p-values, [n] with n >= 1 and oldest first, a shift most likely began.

    It is the place from which on the bets, each with an equal part, would have won the most.
    """
    won = np.cumsum(np.stack([log_bets(float(p)) for p in p_values])[::-1], axis=0)[::-1]
    return int(np.logaddexp.reduce(won, axis=1).argmax())
