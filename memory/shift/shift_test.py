"""Whether a source's scores have shifted, upwards or either way, against its own earlier ones, by betting.

The p-value of each score is its rank among those kept of the ones before it (Vovk, Gammerman and Shafer,
Algorithmic Learning in a Random World, 2005, section 2.5). While the scores are draws of one distribution,
the p-values are independent and uniform, so that what a bet on small ones wins is a martingale that begins
at 1. It reaches 1 / a with a chance of at most a, however long the stream (Ville's inequality): an alarm may
be looked for after each item.

Pictures of one scene come in bursts of items that score alike. Then sums of normal scores vary V times as
much as those of independent ones, and n items say as much as n / V. So the logarithm of each pay is divided
by V. Of a bet on normal scores that is the likelihood ratio of so many fewer items. In general, pays of at
most V items that depend on each other, each to the power of 1 / V, pay together at most 1 on average
(Hölder's inequality). V is estimated from the items before the bet, and is at least 1. So the bound is a
theorem for independent scores (Jensen's inequality). For bursts it holds as far as the estimate of V does.
"""

import math
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy.special import ndtri

BETS = ((1, 0.25), (1, 0.5), (1, 1.0), (1, 1.5), (1, 2.0), (0.3, 1.0), (0.3, 2.0), (0.1, 1.5), (0.1, 2.5))
"""What is bet on, each with an equal part of the capital: a share of the items, and by how many standard
deviations their normal scores shift. At an item AUC of A that is sqrt(2) * ndtri(A): 0.60 has 0.36, 0.90 has
1.8."""

_SHARES, _SHIFTS = np.array(BETS).T
_HALF_SQUARES = _SHIFTS**2 / 2

_WINDOW = 30
"""Items in the sums that V is estimated from: more than the longest burst that the test allows for, 20."""

_APART = np.repeat((-1.0, 1.0, 0.0), _WINDOW)
"""What the difference of the two older of three adjacent sums weighs each score with."""

_MARGIN = 1.75
"""V - 1 over what differences of such sums show of it: 0.65 of bursts of 20. The rest is for chance."""

_PRIOR = 10.0
"""V before anything was seen: about that of bursts of 20 with a correlation of 0.5. It weighs as much as
an eighth of the items that a source gathers."""


_LATER = 1 / 8
"""How the capital is dealt over the times at which the shift may begin: n ** -_LATER of it is left for those
after the n-th. So small an exponent leaves something for late ones."""

_SHARE = 1 / 2
"""The same for tests: s ** -_SHARE of the budget is left for those after the s-th."""

_LARGEST = float(np.finfo(np.float32).max)


def share_of_budget(number: int) -> float:
    """Return which share of a budget for false alarms the test of this number gets, from 1; they sum to 1."""
    return float(number**-_SHARE - (number + 1) ** -_SHARE)


@dataclass
class ShiftTest:
    """The test of one source: scores that were kept, and the capital of the bets on a shift.

    seed: of what is drawn, which whoever sends items must not know. gather: how many scores are kept before
    the first bet; most: how many are kept at all, at least as many. Of more, one is left out at random, the
    newest like any other: so what is kept stays a draw of the same distribution whatever the p-values were,
    and older ones are forgotten, on average after `most` items. So is what V is estimated from.

    It bets on a shift upwards. One that `two_sided` made bets half of its capital on a shift downwards.
    """

    seed: int
    gather: int
    most: int
    kept: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """[n], in no order"""
    seen: int = 0
    bets: int = 0
    log_capital: NDArray[np.float64] = field(default_factory=lambda: np.full(len(BETS), -np.inf))
    """[n], what each bet has won so far; what is left for later beginnings is not in it. n is len(BETS); of a
    two-sided test it is twice that, those upwards first"""
    recent: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """[at most 3 * _WINDOW], the newest normal scores, oldest first"""
    variance: float = _PRIOR
    """of sums of adjacent normal scores, over that of independent ones, as far as differences show it"""

    @classmethod
    def two_sided(cls, seed: int, gather: int, most: int) -> Self:
        """Begin a test that bets on a shift either way; the mean of both bets is a martingale, too."""
        return cls(seed, gather, most, log_capital=np.full(2 * len(BETS), -np.inf))

    def observe(self, score: float) -> float | None:
        """Take the next score in; return its p-value in (0, 1), small for a high one; None: only gathered."""
        uniform, place = self._draw()
        self.seen += 1
        score = min(max(score, -_LARGEST), _LARGEST)
        above, equal = np.count_nonzero(self.kept > score), np.count_nonzero(self.kept == score)
        p = (above + uniform * (equal + 1)) / (len(self.kept) + 1)
        bets = len(self.kept) >= self.gather
        if bets:
            self._bet(p)
        self._estimate(p)
        self._keep(score, place)
        return p if bets else None

    def _draw(self) -> tuple[float, int]:
        """Return a number in (0, 1) and one in 0..most: a keyed digest, a tenth of a generator's cost."""
        drawn = blake2b(self.seen.to_bytes(8), key=self.seed.to_bytes(8), digest_size=16).digest()
        uniform = (int.from_bytes(drawn[:6]) + 0.5) / 2**48
        return uniform, int.from_bytes(drawn[8:]) % (self.most + 1)

    def _bet(self, p: float) -> None:
        self.bets += 1
        begins = self.bets**-_LATER - (self.bets + 1) ** -_LATER
        pays = log_bets(p) if len(self.log_capital) == len(BETS) else log_bets_either_way(p)
        self.log_capital = np.logaddexp(self.log_capital, math.log(begins / len(pays)))
        self.log_capital += pays / max(1.0, 1 + _MARGIN * (self.variance - 1))

    def _estimate(self, p: float) -> None:
        """Take a p-value into V, by the difference of two adjacent sums: a shift that stays adds little.

        The newest sum waits, so that V knows nothing yet of a shift when the first bets on it are placed.
        """
        self.recent = np.concatenate((self.recent[1 - 3 * _WINDOW :], (-ndtri(p),)))
        count = self.seen - 3 * _WINDOW + 1
        if count > 0:
            weight = 1 / min(self.gather / 8 + count, self.most)
            self.variance += weight * (float(self.recent @ _APART) ** 2 / (2 * _WINDOW) - self.variance)

    def _keep(self, score: float, place: int) -> None:
        if len(self.kept) < self.most:
            self.kept = np.append(self.kept, np.float32(score))
        elif place < self.most:  # else it is the newest that is left out
            self.kept[place] = score

    @property
    def log_e(self) -> float:
        """The natural logarithm of the capital, which began at 1."""
        later = -_LATER * math.log(self.bets + 1)
        return float(np.logaddexp(np.logaddexp.reduce(self.log_capital), later))

    @property
    def upwards(self) -> bool:
        """Whether the bets on a shift upwards have won more than those downwards."""
        up, down = self.log_capital[: len(BETS)], self.log_capital[len(BETS) :]
        return bool(np.logaddexp.reduce(up) > np.logaddexp.reduce(down))

    def to_bytes(self) -> bytes:
        """Return all of it as safetensors."""
        numbers = np.array([self.seed, self.gather, self.most, self.seen, self.bets], np.int64)
        arrays: dict[str, NDArray[Any]] = {"numbers": numbers, "variance": np.array(self.variance)}
        return save(arrays | {"kept": self.kept, "log_capital": self.log_capital, "recent": self.recent})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read back the bytes of `to_bytes`."""
        arrays = load(data)
        seed, gather, most, seen, bets = (int(number) for number in arrays["numbers"])
        kept, log_capital, recent = (arrays[name].copy() for name in ("kept", "log_capital", "recent"))
        return cls(seed, gather, most, kept, seen, bets, log_capital, recent, float(arrays["variance"]))


def log_bets(p: float) -> NDArray[np.float64]:
    """Return for each of BETS the log of its pay at a p-value: its mean pay over uniform ones is 1.

    It is the likelihood ratio of normal scores of which a share is shifted.
    """
    return np.asarray(np.log1p(_SHARES * np.expm1(_SHIFTS * -ndtri(p) - _HALF_SQUARES)))


def log_bets_either_way(p: float) -> NDArray[np.float64]:
    """Return `log_bets` of p, for bets upwards, then of 1 - p, for bets downwards."""
    return np.concatenate((log_bets(p), log_bets(1 - p)))


def began(p_values: NDArray[np.float64]) -> int:
    """Return where among p-values, [n] with n >= 1 and oldest first, a shift upwards most likely began.

    Of a shift downwards, give it 1 - p.

    It is the place from which on the bets, each with an equal part, would have won the most.
    """
    won = np.cumsum(np.stack([log_bets(float(p)) for p in p_values])[::-1], axis=0)[::-1]
    return int(np.logaddexp.reduce(won, axis=1).argmax())
