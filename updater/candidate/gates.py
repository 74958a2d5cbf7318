"""The conditions that a candidate must meet before it can be proposed, as pure functions.

Shares are fractions in 0..1, AUCs too; a gate that compares two of them has its value and bound
in points (hundredths). A value that equals its bound holds. A value that is not a number, as
where nothing was held back to measure it on, never holds: what was not measured was not met.
"""

import math
from collections.abc import Mapping, Sequence

from memory.records import REAL
from updater.records import Gate, Lost, Performance, Power, Robustness
from updater.settings import UpdaterSettings


def make_gates(
    bounds: UpdaterSettings,
    classes: Sequence[str],
    new: Sequence[str],
    before: Performance | None,
    after: Performance,
) -> tuple[Gate, ...]:
    """Return every gate that applies to a candidate of these classes, of which the first is real.

    new: those that the live release does not know. before: the live release on the same held-back items,
    None where nothing is live, and so nothing can be forgotten. Raises KeyError where a class was not
    measured, and ValueError where the live release knows no family.
    """
    reals = after.classes[REAL]
    found = [
        at_most("share of reals called unknown", reals.unknown, bounds.max_reals_wrong),
        at_most("share of reals called fake", reals.fake, bounds.max_reals_wrong),
        *names({name: after.classes[name].named for name in new}, bounds.min_new_named),
    ]
    if before is not None:
        old = [name for name in classes if name != REAL and name not in new]
        found += [
            forgets(
                {name: before.classes[name].named for name in old},
                {name: after.classes[name].named for name in old},
                bounds.max_forgotten_points,
            ),
        ]
        found += keeps_power(before.power, after.power, bounds.max_power_points)
        found += keeps_robustness(before.robustness, after.robustness, bounds.max_robustness_points)
    return tuple(found)


def at_most(name: str, value: float, bound: float) -> Gate:
    """Holds where value <= bound."""
    return Gate(name=name, value=value, bound=bound, holds=value <= bound)


def at_least(name: str, value: float, bound: float) -> Gate:
    """Holds where value >= bound."""
    return Gate(name=name, value=value, bound=bound, holds=value >= bound)


def forgets(before: Mapping[str, float], after: Mapping[str, float], bound_points: float) -> Gate:
    """Mean over the live model's forgery families of (share named before - share named after), in points.

    Keys are families, values the share of the family's held-back items that got its very name.
    Positive: forgotten. Raises KeyError where `after` lacks a family of `before`, since a
    candidate must answer for every one of them, and ValueError where there is none.
    """
    if not before:
        raise ValueError("the live model knows no family, so there is nothing to forget")
    lost = sum(before[family] - after[family] for family in before) / len(before)
    return at_most("points forgotten of the old families", _rounded(100 * lost), bound_points)


def keeps_power(before: Power | None, after: Power | None, bound_points: float) -> tuple[Gate, ...]:
    """Mean over the families of both of (share caught before - share caught after), in points.

    A family's share is that of its items not called real while it was left out. Positive: the candidate lets
    more of an unseen family pass. No gate where the live model was not measured so, which one with a single
    family cannot be.
    """
    if before is None:
        return ()
    both = [name for name in before.families if after is not None and name in after.families]
    lost = [before.families[name].share - after.families[name].share for name in both] if after else []
    value = _rounded(100 * sum(lost) / len(lost)) if lost else math.nan
    return (at_most("points of power lost", value, bound_points),)


def keeps_robustness(
    before: Robustness | None, after: Robustness | None, bound_points: float
) -> tuple[Gate, ...]:
    """Points of accuracy under distortions that a candidate has lost with 95 % confidence: `low` of its loss.

    So what chance explains refuses nobody: few items let more pass, and `lost_on` says how much. Positive:
    distortions mislead the candidate more. No gate where the live model was not measured so.
    """
    if before is None:
        return ()
    lost = after and after.lost
    value = _rounded(100 * lost.low) if lost else math.nan
    gate = at_most("points of accuracy lost under distortions, beyond chance", value, bound_points)
    return (gate.model_copy(update={"measured": _said_of(lost)}) if lost else gate,)


def _said_of(lost: Lost) -> str:
    share, low, high = (f"{100 * value:.1f}" for value in (lost.share, lost.low, lost.high))
    return f"{share} [{low} to {high}] of {lost.reals} real and {lost.forgeries} forged items"


def names(named: Mapping[str, float], bound: float) -> tuple[Gate, ...]:
    """One gate for each new family (key): the share of its held-back items (value) that got its very name."""
    return tuple(at_least(f"share of {family} named", share, bound) for family, share in named.items())


def _rounded(points: float) -> float:
    # 0.90 - 0.85 is 5.000000000000004 points: a rounding error must not refuse a candidate.
    return round(points, 9)
