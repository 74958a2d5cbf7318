"""Intervals of shares and of their losses: 95 % confidence in either end. A group is one witness.

Light, for the deploy server computes them anew from an evaluation's bytes.
"""

import math
from collections.abc import Sequence

from scipy.special import betaincinv

from updater.records import DeclaredRecall

CONFIDENCE = 0.95
"""that the truth is not below the lower end; and, apart from that, that it is not above the upper one"""


def share_interval(share: float, groups: int) -> tuple[float, float]:
    """Return the ends of an interval of a share, 0..1, that is the mean over so many groups.

    Clopper and Pearson (1934), of share x groups successes. A group's own share has no more variance than a
    yes or no, so that the interval is not too narrow where groups have several items.
    """
    right, wrong = share * groups, (1 - share) * groups
    low = float(betaincinv(right, wrong + 1, 1 - CONFIDENCE)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, wrong, CONFIDENCE)) if wrong > 0 else 1.0
    return low, high


def declared_recall(caught: int, items: int) -> DeclaredRecall | None:
    """Return the recall of declared media with its interval, each item a witness; None of no items."""
    if not items:
        return None
    low, high = share_interval(caught / items, items)
    return DeclaredRecall(items=items, caught=caught, low=low, high=high)


def groups_to_decide(share: float, bound: float) -> int | None:
    """Return about how many groups put a bound, 0..1, outside of the interval of a share that stays as it is.

    None where 100,000 do not.
    """
    groups = 8
    while groups <= 100_000:
        low, high = share_interval(share, groups)
        if not low < bound < high:
            return groups
        groups += -(-groups // 20)
    return None


def difference_interval(
    before: Sequence[tuple[float, int]], after: Sequence[tuple[float, int]]
) -> tuple[float, float]:
    """Return the ends of an interval of the mean of (before - after), -1..1, over pairs of shares.

    before, after: shares with their numbers of groups, in one order, at least one. The ends are recovered
    from those of the single shares (Zou and Donner 2008), taken as independent. Of releases that judged many
    of the same items the interval is rather too wide.
    """
    below = above = 0.0
    for (b, groups_before), (a, groups_after) in zip(before, after, strict=True):
        b_low, b_high = share_interval(b, groups_before)
        a_low, a_high = share_interval(a, groups_after)
        below += (b - b_low) ** 2 + (a_high - a) ** 2
        above += (b_high - b) ** 2 + (a - a_low) ** 2
    mean = sum(b - a for (b, _), (a, _) in zip(before, after, strict=True)) / len(before)
    return mean - math.sqrt(below) / len(before), mean + math.sqrt(above) / len(before)
