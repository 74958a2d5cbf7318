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
    """without each source, where there are several: rows are sources by rules by rollouts"""
    units: NDArray[np.int64]
    """[sources, rules, rollouts]"""
    known: int

    @classmethod
    def of(cls, net: bool, rollouts: int, known: int, new: bool = False) -> Self:
        """Before the first unit. new: whether there are names without a history."""
        places = np.array([place for place, rule in enumerate(RULES) if rule.net == net])
        chosen = tuple(RULES[place] for place in places)
        bounds = np.repeat([rule.tolerated for rule in chosen], rollouts)
        low = -1.0 if net else 0.0
        units = np.zeros((known + new, len(chosen), rollouts), np.int64)
        rests = np.tile(bounds, 0 if (known, new) == (1, False) else known + new)
        return cls(chosen, places, Bets(bounds, low), Bets(rests, low), units, known)

    def take(self, counts: NDArray[np.int64], source: int) -> None:
        """Bet on what one source sent. counts: [rules, rollouts, 3], items that say 1, 0, -1."""
        items = counts.sum(axis=2)
        with np.errstate(invalid="ignore"):
            mean = (counts[..., 0] - counts[..., 2]) / items
        self.units[source] += items > 0
        by_item = np.array([rule.by_item for rule in self.rules])[:, None]
        others = np.broadcast_to((np.arange(len(self.units)) != source)[:, None, None], self.units.shape)
        for bets, there in ((self.all, np.ones((1, 1, 1), bool)), (self.rest, others)):
            if len(bets.bounds):
                bets.bet_above(np.where(there, mean, np.nan).ravel())
                bets.bet_below(np.where(there & ~by_item, mean, np.nan).ravel())
                if by_item.any():
                    for place, x in enumerate(ITEM):
                        bets.bet_below(float(x), (there * counts[..., place] * by_item).ravel())

    def begin_step(self, where: NDArray[np.bool_]) -> None:
        """A step of some rollouts begins, [rollouts]."""
        self.all.begin_step(np.broadcast_to(where, self.units.shape[1:]).ravel())
        if len(self.rest.bounds):
            self.rest.begin_step(np.broadcast_to(where, self.units.shape).ravel())

    def shown(self) -> NDArray[np.int8]:
        """[rules, rollouts], what each shows."""
        shape, units = self.units.shape, self.units.sum(0)
        above, below = (log.reshape(shape[1:]) for log in (self.all.log_above, self.all.log_below))
        rests = (self.rest.log_above, self.rest.log_below, (units - self.units).ravel())
        rest = [each.reshape(shape) if len(self.rest.bounds) else np.zeros((0, *shape[1:])) for each in rests]
        may_pass = np.arange(len(self.units))[:, None] < (self.known == 1)
        return np.array(
            [
                shows(rule, above[row], below[row], units[row], *(each[:, row] for each in rest), may_pass)
                for row, rule in enumerate(self.rules)
            ]
        )

    def keep(self, which: NDArray[np.bool_]) -> Self:
        """The same of some rollouts."""
        both = Bets(np.empty(0), self.all.low), Bets(np.empty(0), self.all.low)
        both[0].add_rows(self.all, np.flatnonzero(np.broadcast_to(which, self.units.shape[1:]).ravel()))
        if len(self.rest.bounds):
            both[1].add_rows(self.rest, np.flatnonzero(np.broadcast_to(which, self.units.shape).ravel()))
        return replace(self, all=both[0], rest=both[1], units=self.units[..., which])
