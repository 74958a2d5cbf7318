"""The conditions on a candidate, as pure functions of its evaluation. One that does not hold is a finding.

Shares are fractions in 0..1, AUCs too; a gate that compares two of them has its value and bound in points
(hundredths). A gate holds where its whole interval lies within the bound, which its end may equal, and is
broken where all of it lies beyond. In between, and where nothing was measured, it is not shown to hold.
"""

import math

from memory.records import REAL
from updater.candidate.outlook import reals_wanted
from updater.gate_records import Behind, Gate
from updater.intervals import difference_interval, groups_to_decide, share_interval
from updater.records import Evaluation, Performance, Power, Robustness, Shares
from updater.settings import UpdaterSettings

NOT_MEASURED = "It could not be measured: too few items were held back. Label or import more of them."
OF_ROBUSTNESS = "Import reals and forgeries as they arrive: saved again, resized, cut from a video."
_SOURCES_SHOWN = 3


def advice_on_reals(evaluation: Evaluation, behind: Behind, called: str) -> str:
    """Reals called unknown or fake: import more of the sources that they come from."""
    first_sources = list(behind.sources)[:_SOURCES_SHOWN]
    wanted = _reals_to_import(evaluation, first_sources or list(evaluation.real_groups))
    items = ", ".join(f"{behind.sources[source]} of {source}" for source in first_sources)
    return (
        f"Look at the items behind it{f' ({items})' if items else ''}: label one that is no real anew."
        f" {wanted} Or accept it: about so many other reals of these sources are then called {called}."
    )


def of_naming(evaluation: Evaluation, family: str) -> str:
    """A new family that is rarely named: label more of it."""
    learnt = evaluation.items.get("train", {}).get(family, 0)
    others = "Label those behind it that are others anew."
    return f"Label more items of {family}: it learnt from {learnt}. {others}"


def of_forgotten(evaluation: Evaluation) -> str:
    """Families that are named less often: label more of the one that lost most."""
    by_family = {} if evaluation.forgotten is None else evaluation.forgotten.by_family
    worst = max(by_family, key=lambda name: by_family[name], default=None)
    most = f"{worst} lost most ({100 * by_family[worst]:.0f} points): label" if worst else "Label"
    return f"{most} more of the old families' items, or undo a label that took some for another family."


def of_power(evaluation: Evaluation) -> str:
    """More of an unseen family passes: reals that are few or too various have raised the thresholds."""
    lost = power_lost(evaluation)
    worst = f"{lost[0][1]} lost most ({100 * lost[0][0]:.0f} points). " if lost else ""
    return (
        f"{worst}Reals that are few, or differ much from one another, raise the thresholds."
        f" {_reals_to_import(evaluation, list(evaluation.real_groups))} Name forgeries among the unknowns."
    )


def power_lost(evaluation: Evaluation) -> list[tuple[float, str, tuple[str, ...]]]:
    """Return by how much each left-out family's share fell, its name, its items that passed; worst first."""
    before = evaluation.before and evaluation.before.power
    after = evaluation.after.power
    if not before or not after:
        return []
    both = [name for name in before.families if name in after.families]
    lost = [(before.families[name].share - after.families[name].share, name) for name in both]
    return [(fell, name, after.families[name].passed) for fell, name in sorted(lost, reverse=True)]


def _reals_to_import(evaluation: Evaluation, sources: list[str]) -> str:
    wanted = reals_wanted(evaluation.real_groups, sources)[:_SOURCES_SHOWN]
    if not wanted:
        return "Import more reals of these sources, and of others like them."
    return f"Import reals: about {', '.join(f'{count} more of {source}' for source, count in wanted)}."


REALS_UNKNOWN, REALS_FAKE = "share of reals called unknown", "share of reals called fake"
FORGOTTEN = "points forgotten of the old families"
POWER = "points of power lost"
ROBUSTNESS = "points of accuracy lost under distortions"
ITEMS_SHOWN = 8
"""behind a finding"""
_NOTHING = Behind(items=(), sources={})


def naming(family: str) -> str:
    """Return the name of the gate on the named share of a new family."""
    return f"share of {family} named"


def make_gates(bounds: UpdaterSettings, evaluation: Evaluation) -> tuple[Gate, ...]:
    """Return every gate that applies to the evaluation; those that it names itself are not looked at.

    Without a live release nothing can be forgotten or lost. Raises KeyError where a class was not measured,
    and ValueError where the live release knows no family.
    """
    classes, before, after = evaluation.classes, evaluation.before, evaluation.after
    reals, wrong = after.classes[REAL], bounds.max_reals_wrong
    gates = [
        _share(REALS_UNKNOWN, reals.unknown, wrong, reals.groups),
        _share(REALS_FAKE, reals.fake, wrong, reals.groups),
        *(names(name, after.classes[name], bounds.min_new_named) for name in evaluation.new),
    ]
    carried = {name for name in evaluation.carried if not evaluation.items["test"].get(name)}
    old = [name for name in classes if name not in (REAL, *evaluation.new, *carried)]
    if before is not None:
        gates += [
            *([forgets(evaluation, before, old, bounds)] if old or not carried else []),
            *keeps_power(before.power, after.power, bounds.max_power_points),
            *keeps_robustness(before.robustness, after.robustness, bounds.max_robustness_points),
        ]
    return tuple(gate if gate.holds else _as_finding(gate, evaluation) for gate in gates)


def names(family: str, shares: Shares, bound: float) -> Gate:
    """The gate of a new family: the share of its held-back items that got its very name."""
    return _share(naming(family), shares.named, bound, shares.groups, at_least=True)


def forgets(evaluation: Evaluation, before: Performance, old: list[str], bounds: UpdaterSettings) -> Gate:
    """Mean over the live model's forgery families of (share named before - share named after), in points.

    old: these families, but for those that sums alone answer for. Positive: forgotten. Raises KeyError where
    one was not measured, since a candidate must answer for each, and ValueError where there is none.
    """
    if not old:
        raise ValueError("the live model knows no family, so there is nothing to forget")
    after = evaluation.after.classes
    lost = sum(before.classes[family].named - after[family].named for family in old) / len(old)
    of = evaluation.forgotten
    interval = (of.low, of.high, of.groups) if of else None
    return _points_at_most(FORGOTTEN, lost, bounds.max_forgotten_points, interval)


def keeps_power(before: Power | None, after: Power | None, bound_points: float) -> tuple[Gate, ...]:
    """Mean over the families of both of (share caught before - share caught after), in points.

    A family's share is that of its items not called real while it was left out. Positive: the candidate lets
    more of an unseen family pass. No gate where the live model was not measured so, which one with a single
    family cannot be.
    """
    if before is None:
        return ()
    known = [name for name in before.families if after is not None and name in after.families]
    if after is None or not known:
        return (_points_at_most(POWER, math.nan, bound_points, None),)
    old, new = ([of.families[name] for name in known] for of in (before, after))
    lost = sum(b.share - a.share for b, a in zip(old, new, strict=True)) / len(known)
    ends = difference_interval(*([(of.share, of.groups) for of in some] for some in (old, new)))
    interval = (*ends, sum(of.groups for of in new))
    return (_points_at_most(POWER, lost, bound_points, interval),)


def keeps_robustness(
    before: Robustness | None, after: Robustness | None, bound_points: float
) -> tuple[Gate, ...]:
    """Points of accuracy under distortions that a candidate has lost, on the classes that both know.

    Positive: distortions mislead the candidate more. No gate where the live model was not measured so.
    """
    if before is None:
        return ()
    lost = after.lost if after else None
    if lost is None:
        return (_points_at_most(ROBUSTNESS, math.nan, bound_points, None),)
    interval = (lost.low, lost.high, lost.reals + lost.forgeries)
    gate = _points_at_most(ROBUSTNESS, lost.share, bound_points, interval)
    share, low, high = (f"{100 * value:.1f}" for value in (lost.share, lost.low, lost.high))
    measured = f"{share} [{low} to {high}] of {lost.reals} real and {lost.forgeries} forged items"
    return (gate.model_copy(update={"measured": measured}),)


def _share(name: str, share: float, bound: float, groups: int | None, *, at_least: bool = False) -> Gate:
    """A gate on a share, 0..1, of so many groups."""
    if not groups or not math.isfinite(share):
        return _bound_gate(name, share, bound, None)
    interval = (*share_interval(share, groups), groups)
    return _bound_gate(name, share, bound, interval, groups_to_decide(share, bound), at_least=at_least)


def _points_at_most(name: str, lost: float, bound: float, interval: tuple[float, float, int] | None) -> Gate:
    """A gate on a loss, a fraction, with its interval's ends and groups; value, ends and bound are points."""
    value = _round_off(100 * lost)
    if interval is None:
        return _bound_gate(name, value, bound, None)
    low, high, groups = 100 * interval[0], 100 * interval[1], interval[2]
    # An interval narrows by the root of its groups.
    apart, reach = abs(bound - value), high - value if value <= bound else value - low
    wanted = math.ceil(groups * (reach / apart) ** 2) if apart > reach / 100 else None
    return _bound_gate(name, value, bound, (low, high, groups), wanted)


def _bound_gate(
    name: str,
    value: float,
    bound: float,
    interval: tuple[float, float, int] | None,
    wanted: int | None = None,
    *,
    at_least: bool = False,
) -> Gate:
    """wanted: groups by which it would be decided, those of the interval among them."""
    gate = Gate(name=name, value=value if math.isfinite(value) else None, bound=bound, holds=False)
    if interval is None:
        return gate
    low, high, groups = _round_off(interval[0]), _round_off(interval[1]), interval[2]
    holds = low >= bound if at_least else high <= bound
    decides = max(1, wanted - groups) if wanted and not holds and low <= bound <= high else None
    fields = {"holds": holds, "low": low, "high": high, "groups": groups, "decides": decides}
    return gate.model_copy(update=fields)


def _as_finding(gate: Gate, evaluation: Evaluation) -> Gate:
    """Return a gate that does not hold with some items behind it, and with the remedy."""
    after, behind = evaluation.after, evaluation.behind.get(gate.name, _NOTHING)
    items = behind.items
    if gate.name == REALS_UNKNOWN:
        mending = advice_on_reals(evaluation, behind, "unknown")
    elif gate.name == REALS_FAKE:
        mending = advice_on_reals(evaluation, behind, "fake")
    elif gate.name == FORGOTTEN:
        mending = of_forgotten(evaluation)
    elif gate.name == POWER:
        mending = of_power(evaluation)
        items = tuple(item for _, _, passed in power_lost(evaluation) for item in passed)
    elif gate.name == ROBUSTNESS:
        mending = OF_ROBUSTNESS
        items = after.robustness.lost.items if after.robustness and after.robustness.lost else ()
    else:
        mending = of_naming(evaluation, next(f for f in evaluation.new if naming(f) == gate.name))
    if gate.value is None:
        mending = NOT_MEASURED
    return gate.model_copy(update={"items": items[:ITEMS_SHOWN], "mends": mending})


def _round_off(value: float) -> float:
    # 0.90 - 0.85 is 5.000000000000004 points: a rounding error is no finding.
    return round(value, 9)
