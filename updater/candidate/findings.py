"""Findings in plain words, and what mends each: items to label, so many reals of a source to import."""

from updater.candidate.outlook import reals_wanted
from updater.gate_records import Behind
from updater.records import Evaluation

NOT_MEASURED = "It could not be measured: too few items were held back. Label or import more of them."
OF_ROBUSTNESS = "Import reals and forgeries as they arrive: saved again, resized, cut from a video."
_SOURCES_SHOWN = 3


def advice_on_reals(evaluation: Evaluation, behind: Behind, called: str) -> str:
    """Reals called unknown or fake: import more of the sources that they come from."""
    shown = list(behind.sources)[:_SOURCES_SHOWN]
    wanted = _reals_to_import(evaluation, shown or list(evaluation.real_groups))
    items = ", ".join(f"{behind.sources[source]} of {source}" for source in shown)
    return (
        f"Look at the items behind it{f' ({items})' if items else ''}: label one that is no real anew."
        f" {wanted} Or accept it: about so many other reals of these sources are then called {called}."
    )


def of_naming(evaluation: Evaluation, family: str) -> str:
    """A new family that is rarely named: label more of it."""
    learnt = evaluation.items.get("train", {}).get(family, 0)
    return (
        f"Label more items of {family}: it learnt from {learnt}. Label those behind it that are others anew."
    )


def of_forgotten(evaluation: Evaluation) -> str:
    """Families that are named less often: label more of the one that lost most."""
    by_family = {} if evaluation.forgotten is None else evaluation.forgotten.by_family
    worst = max(by_family, key=lambda name: by_family[name], default=None)
    most = f"{worst} lost most ({100 * by_family[worst]:.0f} points): label" if worst else "Label"
    return (
        f"{most} more of the old families' items, or undo a label that took some of them for another family."
    )


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
