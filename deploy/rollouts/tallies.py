"""One check's tally: its counts, its bets, and their result.

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

MOST_SOURCES = 64
"""So many sources weigh alone; all others weigh together."""
_ALONE = 4.0
"""So many times the evidence that fails it, in logs, is inconclusive where it needs one source."""
LEAST_UNITS = 30
"""Of all sources but one, to confirm what that one shows."""
NEW_NAMES = "new names"
"""As which all sources weigh that have no history: one producer may give itself many names."""

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
    rest_units: ArrayLike,
    may_pass: ArrayLike = False,
) -> NDArray[np.int8]:
    """The result of a check's evidence with an alpha: FAILED to UNDECIDED. Arguments are of any one shape.

    above, below: the logs of both capitals. units: bets so far. rest_…: the same without each source, by one
    axis more, which is the first. No source decides alone: what holds with all must hold without each.
    may_pass: by the same axis, which sources a rest lets pass that is too small to say so. None is there
    where one source may decide, by a person's word.
    """
    above, below, units = np.asarray(above), np.asarray(below), np.asarray(units)
    wanted, few = log(1 / rule.alpha), bets_to_pass(rule.tolerated, 0.0) or 0
    fails, passes = above >= wanted, below >= LOG_20
    # Fewer of a rare family measure nothing: without a single loss they would not pass.
    rare = rule.rare & (units < few)
    agree_above, agree_below = fails, passes
    alone_above = alone_below = np.zeros(above.shape, bool)
    if len(rest := np.asarray(rest_above)):
        least, loses = rest.min(0), np.asarray(rest_below) < -_ROUNDING
        small = np.asarray(rest_units) < (max(few, LEAST_UNITS) if rule.rare else LEAST_UNITS)
        agree_above = fails & (least >= wanted)
        lets = small & (rule.rare | np.asarray(may_pass))
        agree_below = passes & np.where(lets, ~loses, ~small & (np.asarray(rest_below) >= LOG_20)).all(0)
        # The others are given time to show the same: of two bad ones one is ahead by chance.
        alone_above = fails & (above >= _ALONE * wanted)
        alone_below = passes & (loses | (small & ~lets)).any(0)
    return np.select(
        [agree_above, alone_above, agree_below, alone_below, rare],
        [FAILED, ONLY_ABOVE, PASSED, ONLY_BELOW, NOT_MEASURED],
        UNDECIDED,
    ).astype(np.int8)


@dataclass
class CheckTally:
    """One check's counts and bets."""

    rule: Rule
    known: frozenset[str] = frozenset()
    """sources with a history"""
    alone: bool = False
    """one source may decide, or new names"""
    bets: Bets = field(init=False)
    plus: int = 0
    minus: int = 0
    items: int = 0
    labels: int = 0
    """items that it would look at, had nobody said what they are"""
    excused: set[str] = field(default_factory=set)
    """items that would count against the challenger, were it not for a label"""
    units: Counter[str] = field(default_factory=Counter)
    """by source, in the order in which they came"""
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """of the means of units, by source"""
    failed: bool = False
    """it was, after one of the units: so it is, whatever came since and whenever somebody looks"""

    _rest: Bets = field(init=False)
    """at the tolerated share, a row for each source: all units but its own"""
    _at: int = field(init=False)

    def __post_init__(self) -> None:
        self.bets = Bets(_NET_BOUNDS, -1.0) if self.rule.net else Bets(_BOUNDS)
        self._at = int(np.searchsorted(self.bets.bounds, self.rule.tolerated))
        self._rest = Bets(np.empty(0), self.bets.low)

    def begin_step(self) -> None:
        """A step of the rollout begins with the next unit."""
        for bets in (self.bets, self._rest):
            bets.begin_step()

    def take(self, source: str, words: Sequence[int]) -> None:
        """Bet on one unit, a source's items of 10 seconds."""
        counts, mean = Counter(words), sum(words) / len(words)
        self.plus, self.minus = self.plus + counts[1], self.minus + counts[-1]
        self.items += len(words)
        if source not in self.units:
            self._rest.add_rows(self.bets, [self._at])
        self.units[source] += 1
        self.sums[source] += mean
        others = np.array([row != source for row in self.units])
        for bets, there in ((self.bets, True), (self._rest, others)):
            bets.bet_above(np.where(there, mean, np.nan))
            for x, times in counts.items() if self.rule.by_item else ((mean, 1),):
                bets.bet_below(np.where(there, x, np.nan), times)
        if self.rule.alpha and mean > self.rule.tolerated and not self.failed:  # no other mean fails it
            self.failed = self._state_code() == FAILED

    def check(self, waived: Mapping[str, str]) -> Check:
        """Its state now."""
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
        code = FAILED if self.failed else self._state_code()
        why = None
        if code == ONLY_ABOVE:
            why = f"only {[*self.units][int(self._rest.log_above.argmin())]} shows it"
        elif code == ONLY_BELOW:
            why = f"only {[*self.units][int(self._rest.log_below.argmin())]} is below it"
        return STATES[code], why

    def _state_code(self) -> int:
        above, below, units = self.bets.log_above[self._at], self.bets.log_below[self._at], self.units.total()
        if above < log(1 / self.rule.alpha) and below < LOG_20:
            return int(shows(self.rule, above, below, units, (), (), ()))
        if len(self.units) == 1 and (self.alone or self.units.keys() == self.known):
            return int(shows(self.rule, above, below, units, (), (), ()))
        rest_units = [units - own for own in self.units.values()]
        rests = self._rest.log_above, self._rest.log_below, rest_units
        may_pass = [self.alone or {source} == self.known for source in self.units]
        return int(shows(self.rule, above, below, units, *rests, may_pass))
