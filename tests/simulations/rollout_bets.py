"""The bets of many simulated rollouts at once, by the classes and rules of real ones."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rollout_items import FAMILIES

from deploy.rollouts.bets import Bets
from deploy.rollouts.checks import Rule, rules
from deploy.rollouts.tallies import shows

RULES = tuple(rule for rule in rules(FAMILIES) if rule.alpha)
"""The checks that say pass or fail; no simulated challenger knows a new family."""

ITEM = (1, 0, -1)
"""What an item says by a check."""


@dataclass
class Group:
    """The bets of rules with one low end on all rollouts: rows are rules by rollouts."""

    rules: tuple[Rule, ...]
    places: NDArray[np.int64]
    """which of RULES"""
    all: Bets
    rest: Bets
    """without the first source"""
    units: NDArray[np.int64]

    @classmethod
    def of(cls, net: bool, rollouts: int) -> Self:
        """Before the first unit."""
        places = np.array([place for place, rule in enumerate(RULES) if rule.net == net])
        chosen = tuple(RULES[place] for place in places)
        bounds = np.repeat([rule.tolerated for rule in chosen], rollouts)
        low = -1.0 if net else 0.0
        units = np.zeros((len(chosen), rollouts), np.int64)
        return cls(chosen, places, Bets(bounds, low), Bets(bounds, low), units)

    def take(self, counts: NDArray[np.int64], first: bool) -> None:
        """Bet on what one source sent. counts: [rules, rollouts, 3], items that say 1, 0, -1."""
        items = counts.sum(axis=2)
        with np.errstate(invalid="ignore"):
            mean = (counts[..., 0] - counts[..., 2]) / items
        self.units += items > 0
        by_item = np.array([rule.by_item for rule in self.rules])[:, None]
        for bets in (self.all,) if first else (self.all, self.rest):
            bets.bet_above(mean.ravel())
            bets.bet_below(np.where(by_item, np.nan, mean).ravel())
            if by_item.any():
                for place, x in enumerate(ITEM):
                    bets.bet_below(float(x), (counts[..., place] * by_item).ravel())

    def begin_step(self, where: NDArray[np.bool_]) -> None:
        """A step of some rollouts begins, [rollouts]."""
        for bets in (self.all, self.rest):
            bets.begin_step(np.broadcast_to(where, self.units.shape).ravel())

    def shown(self) -> NDArray[np.int8]:
        """[rules, rollouts], what each shows."""
        logs = (self.all.log_above, self.all.log_below, self.rest.log_above, self.rest.log_below)
        above, below, rest_above, rest_below = (log.reshape(self.units.shape) for log in logs)
        return np.array(
            [
                shows(rule, above[row], below[row], self.units[row], rest_above[row], rest_below[row])
                for row, rule in enumerate(self.rules)
            ]
        )

    def keep(self, which: NDArray[np.bool_]) -> Self:
        """The same of some rollouts."""
        rows = np.flatnonzero(np.broadcast_to(which, self.units.shape).ravel())
        both = Bets(np.empty(0), self.all.low), Bets(np.empty(0), self.all.low)
        for bets, of in zip(both, (self.all, self.rest), strict=True):
            bets.add_rows(of, rows)
        return replace(self, all=both[0], rest=both[1], units=self.units[:, which])
