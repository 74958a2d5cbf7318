"""What one check has seen: its counts, its bets, and what these show.

The unit of a bet is what one source sent within 10 seconds, by its mean: items of a burst are alike, and
singly they would break each bet.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deploy.releases.trial import LABELS_WANTED
from deploy.rollout_records import Check, CheckState
from deploy.rollouts.bets import LOG_20, Bets, bets_to_pass, interval
from deploy.rollouts.checks import LOOK_ALPHA, Rule

_MOST_SOURCES = 64
"""So many, the first that come, may turn out as the largest."""

_BOUNDS = np.unique(np.concatenate((np.geomspace(0.0005, 0.9, 48), (0.03, 0.1, 0.05, 0.005, 0.01))))
_NET_BOUNDS = np.unique(np.concatenate((-_BOUNDS, [0.0], _BOUNDS)))

_ROUNDING = 1e-9

FAILED, ONLY_ABOVE, PASSED, ONLY_BELOW, NOT_MEASURED, UNDECIDED = range(6)
STATES: tuple[CheckState, ...] = (
    "failed",
    "inconclusive",
    "passed",
    "inconclusive",
    "not measured",
    "undecided",
)


def shows(
    rule: Rule,
    above: ArrayLike,
    below: ArrayLike,
    units: ArrayLike,
    rest_above: ArrayLike,
    rest_below: ArrayLike,
) -> NDArray[np.int8]:
    """What the evidence on a check with an alpha shows: FAILED to UNDECIDED. Arguments are of any one shape.

    above, below: the logs of both capitals. units: bets so far. rest_above, rest_below: the logs of both
    capitals without the largest source. What these lost by it holds only by that source.
    """
    fails = np.asarray(above) >= log(1 / rule.alpha)
    passes = np.asarray(below) >= LOG_20
    loses_above, loses_below = (np.less(rest, -_ROUNDING) for rest in (rest_above, rest_below))
    # Fewer of a rare family measure nothing: without a single loss they would not pass.
    few = rule.rare & (np.asarray(units) < (bets_to_pass(rule.tolerated, 0.0) or 0))
    return np.select(
        [fails & loses_above, fails, passes & loses_below, passes, few],
        [ONLY_ABOVE, FAILED, ONLY_BELOW, PASSED, NOT_MEASURED],
        UNDECIDED,
    ).astype(np.int8)


@dataclass
class Tally:
    """One check's counts and bets."""

    rule: Rule
    bets: Bets = field(init=False)
    plus: int = 0
    minus: int = 0
    items: int = 0
    labels: int = 0
    """items that it would look at, had nobody said what they are"""
    units: Counter[str] = field(default_factory=Counter)
    """by source"""
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """of the means of units, by source"""
    failed: bool = False
    """it was, after one of the units: so it is, whatever came since and whenever somebody looks"""

    _rest: Bets = field(init=False)
    """at the tolerated share, a row for each source that may be the largest: all units but its own"""
    _rows: list[str] = field(default_factory=list)
    _at: int = field(init=False)

    def __post_init__(self) -> None:
        self.bets = Bets(_NET_BOUNDS, -1.0) if self.rule.net else Bets(_BOUNDS)
        self._at = int(np.searchsorted(self.bets.bounds, self.rule.tolerated))
        self._rest = Bets(np.empty(0), self.bets.low)

    def begin_step(self) -> None:
        """A step of the rollout begins with the next unit."""
        for bets in (self.bets, self._rest):
            bets.begin_step()

    def take(self, source: str, said: Sequence[int]) -> None:
        """Bet on one unit, what a source's items of 10 seconds say."""
        counts, mean = Counter(said), sum(said) / len(said)
        self.plus, self.minus = self.plus + counts[1], self.minus + counts[-1]
        self.items += len(said)
        self.units[source] += 1
        self.sums[source] += mean
        if source not in self._rows and len(self._rows) < _MOST_SOURCES:
            self._rows.append(source)
            self._rest.add_rows(self.bets, [self._at])
        others = np.array([row != source for row in self._rows])
        for bets, there in ((self.bets, True), (self._rest, others)):
            bets.bet_above(np.where(there, mean, np.nan))
            for x, times in counts.items() if self.rule.by_item else ((mean, 1),):
                bets.bet_below(np.where(there, x, np.nan), times)
        if self.rule.alpha and not self.failed:
            self.failed = self._shown() == FAILED

    def check(self, waived: Mapping[str, str]) -> Check:
        """What it shows now."""
        low, high = interval(self.bets)
        units = self.units.total()
        state, why = self._state(waived)
        return Check(
            name=self.rule.name,
            counted=self.plus,
            counter=self.minus,
            items=self.items,
            units=units,
            share=sum(self.sums.values()) / units if units else None,
            low=low,
            high=high,
            tolerated=self.rule.tolerated,
            state=state,
            reason=waived.get(self.rule.name, why),
        )

    def _state(self, waived: Mapping[str, str]) -> tuple[CheckState, str | None]:
        if self.rule.name in waived:
            return "waived", None
        if not self.rule.alpha:
            asks = self.bets.log_above[self._at] >= log(1 / LOOK_ALPHA) and self.labels < LABELS_WANTED
            if asks:
                return "look", f"label {LABELS_WANTED - self.labels} of them"
            return "passed" if self.items else "not measured", None
        shown = FAILED if self.failed else self._shown()
        largest = self._rows[self._largest()] if self._rows else ""
        why = {ONLY_ABOVE: f"only {largest} shows it", ONLY_BELOW: f"only {largest} is below it"}.get(shown)
        return STATES[shown], why

    def _shown(self) -> int:
        above, below = self.bets.log_above[self._at], self.bets.log_below[self._at]
        if self._rows:
            rest = self._rest.log_above[self._largest()], self._rest.log_below[self._largest()]
        else:
            rest = 0.0, 0.0
        return int(shows(self.rule, above, below, self.units.total(), *rest))

    def _largest(self) -> int:
        """The row of the source with the most units."""
        return max(range(len(self._rows)), key=lambda row: self.units[self._rows[row]])
