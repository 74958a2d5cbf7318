"""What the comparisons of a rollout add up to: bets by check, and the table of both verdicts. No Kafka here.

The unit of a bet is what one source sent within 10 seconds, by its mean: items of a burst are alike, and
singly they would break each bet.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np

from deploy.releases.trial import LABELS_WANTED
from deploy.rollout_records import Check, CheckState, Disagreement
from deploy.rollouts.bets import LOG_20, Bets, interval
from deploy.rollouts.checks import LOOK_ALPHA, Rule, Shared, called, rules
from detector.records import Comparison

UNIT_S = 10
_SLACK_S = 2.0
"""A unit is bet on this long after its end: what other workers wrote in it has arrived by then."""

FEW_UNITS = 30
"""Of a family: with fewer it is shown as not measured, and holds nothing up. Without a loss, 35 pass."""

_KEPT = 200
"""Items of each cell of the table that can be opened, the newest."""
_TIMES = 4096

_BOUNDS = np.unique(np.concatenate((np.geomspace(0.0005, 0.9, 48), (0.03, 0.1, 0.05, 0.005, 0.01))))
_NET_BOUNDS = np.unique(np.concatenate((-_BOUNDS, [0.0], _BOUNDS)))


@dataclass
class Tally:
    """One check's counts and bets."""

    rule: Rule
    bets: Bets = field(init=False)
    plus: int = 0
    minus: int = 0
    items: int = 0
    units: Counter[str] = field(default_factory=Counter)
    """by source"""
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """of the means of units, by source"""

    def __post_init__(self) -> None:
        self.bets = Bets(_NET_BOUNDS, -1.0) if self.rule.net else Bets(_BOUNDS)

    def take(self, source: str, said: Sequence[int]) -> None:
        """Bet on one unit, what a source's items of 10 seconds say."""
        counts, mean = Counter(said), sum(said) / len(said)
        self.plus, self.minus = self.plus + counts[1], self.minus + counts[-1]
        self.items += len(said)
        self.units[source] += 1
        self.sums[source] += mean
        self.bets.bet_above(mean)
        for x, times in counts.items() if self.rule.by_item else ((mean, 1),):
            self.bets.bet_below(x, times)

    def check(self, waived: Mapping[str, str], labels: int) -> Check:
        """What it shows now."""
        low, high = interval(self.bets)
        units = self.units.total()
        state, why = self._state(waived, labels)
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

    def _state(self, waived: Mapping[str, str], labels: int) -> tuple[CheckState, str | None]:
        at = int(np.searchsorted(self.bets.bounds, self.rule.tolerated))
        above, below = self.bets.log_above[at], self.bets.log_below[at]
        if self.rule.name in waived:
            return "waived", None
        if not self.rule.alpha:
            looks = above >= log(1 / LOOK_ALPHA) and labels < LABELS_WANTED
            return ("look", f"label {LABELS_WANTED - labels} of them") if looks else ("passed", None)
        largest, rest = self._without_largest()
        if above >= log(1 / self.rule.alpha):
            only = rest is not None and rest <= self.rule.tolerated
            return ("inconclusive", f"only {largest} shows it") if only else ("failed", None)
        if below >= LOG_20:
            only = rest is not None and rest > self.rule.tolerated
            return ("inconclusive", f"only {largest} is below it") if only else ("passed", None)
        few = self.rule.rare and self.units.total() < FEW_UNITS
        return ("not measured" if few else "undecided"), None

    def _without_largest(self) -> tuple[str, float | None]:
        """The source of the most units, and the mean of the others' units; None where they are few."""
        if not self.units:
            return "", None
        largest, most = self.units.most_common(1)[0]
        others = self.units.total() - most
        if others < FEW_UNITS:
            return largest, None
        return largest, (sum(self.sums.values()) - self.sums[largest]) / others


class Evidence:
    """The comparisons of one rollout so far, in the order in which their units ended."""

    def __init__(self, champion: Sequence[str], challenger: Sequence[str], labels: Mapping[str, str]) -> None:
        """champion, challenger: the families that they know. labels: what people called items, by id."""
        self._new = frozenset(challenger) - frozenset(champion)
        self._labels = labels
        self.tallies = [Tally(rule) for rule in rules(champion)]
        self._open: dict[tuple[int, str], list[Shared]] = {}
        self._ended = -1
        self.shared = self.late = 0
        self._written: Counter[int] = Counter()
        self._answered: Counter[int] = Counter()
        """comparisons, and answers of the challenger, by the unit of time"""
        self.table: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._kept: defaultdict[tuple[str, str], deque[Comparison]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._times: tuple[deque[float], deque[float]] = (deque(maxlen=_TIMES), deque(maxlen=_TIMES))

    def add(self, comparison: Comparison, at_s: float) -> None:
        """Take a comparison in that was written at a Unix time, in seconds."""
        unit = int(at_s // UNIT_S)
        if unit <= self._ended:
            self.late += 1
            return
        self.shared += 1
        self._written[unit] += 1
        self._answered[unit] += comparison.answered == "challenger"
        one, other = called(comparison.champion), called(comparison.challenger)
        self.table[one][other] += 1
        self._kept[one, other].append(comparison)
        for times, said in zip(self._times, (comparison.champion, comparison.challenger), strict=True):
            if said.error is None:
                times.append(said.model_s)
        shared = Shared(comparison, self._new, self._labels.get(comparison.id))
        self._open.setdefault((unit, comparison.source), []).append(shared)

    def close(self, until_s: float) -> None:
        """Bet on the units that ended before a time up to which all comparisons were read."""
        before = int((until_s - _SLACK_S) // UNIT_S)
        for unit, source in sorted(key for key in self._open if key[0] < before):
            items = self._open.pop((unit, source))
            for tally in self.tallies:
                if said := [what for item in items if (what := tally.rule.say(item)) is not None]:
                    tally.take(source, said)
        self._ended = max(self._ended, before - 1)

    def checks(self, waived: Mapping[str, str]) -> tuple[Check, ...]:
        """What every check shows now. waived: the reason by the name of each check that is not asked for."""
        return tuple(tally.check(waived, len(self._labels)) for tally in self.tallies)

    def items(self, champion: str, challenger: str) -> list[Disagreement]:
        """The newest items of a cell of the table, the newest first."""
        return [
            Disagreement(
                id=each.id,
                source=each.source,
                digest=each.digest,
                champion=champion,
                challenger=challenger,
                label=self._labels.get(each.id),
            )
            for each in reversed(self._kept.get((champion, challenger), ()))
        ]

    def kept(self) -> frozenset[str]:
        """Ids of the items of all cells."""
        return frozenset(each.id for cell in self._kept.values() for each in cell)

    def shared_since(self, at_s: float) -> int:
        """How many comparisons were written since a Unix time in seconds, to 10 seconds."""
        return sum(count for unit, count in self._written.items() if unit >= at_s // UNIT_S)

    def answered_since(self, at_s: float) -> int:
        """How many answers the challenger gave since then."""
        return sum(count for unit, count in self._answered.items() if unit >= at_s // UNIT_S)

    def model_s(self) -> dict[str, tuple[float, float]]:
        """Median and 95th percentile of the newest items' seconds, by role."""
        roles = zip(("champion", "challenger"), self._times, strict=True)
        found = {role: np.quantile(times, (0.5, 0.95)) for role, times in roles if times}
        return {role: (float(low), float(high)) for role, (low, high) in found.items()}
