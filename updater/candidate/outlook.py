"""What a release's thresholds rest on, told before it is trained and in its card. Pure and light."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from memory.records import CALIBRATION_SHARE, REAL, LabelledCount

LEAST = {"train": 8, "calibration": 2, "test": 2}
"""Fewest items of a class in each split: below, it waits for more of them to be labelled."""
UNKNOWN_GROUPS, FAKE_GROUPS = 65, 74
"""Groups of reals to calibrate on, below which a threshold's quantile of reals is their maximum
(`thresholds.conservative_share` of the shares that `thresholds.TARGETS` asks for is then 0)"""
SOURCE_GROUPS = 20
"""Groups of a source's reals to calibrate on, from which it has thresholds of its own: the largest of so many
scores is exceeded by one more in 1 of 21"""
_STEP = 5
"""what asked-for numbers are rounded up to"""
_SHOWN = 5
"""sources that are named"""

Counts = Mapping[str, Mapping[str, int]]


class Outlook(BaseModel):
    """What an update of today's labels will rest on, and what it will not know."""

    model_config = ConfigDict(frozen=True)

    real_groups: Mapping[str, Mapping[str, int]] = Field(description="groups of reals by source and split")
    items: Mapping[str, Mapping[str, int]] = Field(description="labelled items of each class, by split")
    waiting: Mapping[str, Mapping[str, int]] = Field(
        description="classes with too few items to be learnt, and how many each split lacks"
    )
    told: tuple[str, ...] = Field(description="families that it will and will not know, a sentence each")


def outlook(real_groups: Counts, items: Counts) -> Outlook:
    """Return what an update will rest on: groups of reals by source and split, items of classes by split."""
    waiting = {
        name: {split: LEAST[split] - of.get(split, 0) for split in LEAST if of.get(split, 0) < LEAST[split]}
        for name, of in items.items()
    }
    waiting = {name: lacking for name, lacking in waiting.items() if lacking}
    return Outlook(
        real_groups=real_groups,
        items=items,
        waiting=waiting,
        told=tuple(_advice(real_groups, items, waiting)),
    )


def outlook_of(labelled: Iterable[LabelledCount]) -> Outlook:
    """Return what an update will rest on that is trained on everything with a label now."""
    items: dict[str, Counter[str]] = {}
    real_groups: dict[str, Counter[str]] = {}
    for count in labelled:
        items.setdefault(count.family, Counter())[count.split] += count.items
        if count.family == REAL:
            real_groups.setdefault(count.source, Counter())[count.split] += count.groups
    return outlook(real_groups, items)


def thresholds_rest_on(real_groups: Counts) -> str:
    """Say what the thresholds of a release rest on, by groups of real items by source and split."""
    count = sum(of.get("calibration", 0) for of in real_groups.values())
    quantiles = f"The thresholds rest on {count} groups of reals held back for calibration."
    if count >= FAKE_GROUPS:
        return quantiles
    which = "unknown and of fake" if count < UNKNOWN_GROUPS else "fake"
    least = UNKNOWN_GROUPS if count < UNKNOWN_GROUPS else FAKE_GROUPS
    return (
        f"{quantiles} With fewer than {least}, the reals' quantile in the threshold of {which} is their"
        f" maximum, and one odd real moves it. About {reals_for(least - count)} more reals would mend that."
    )


def reals_wanted(real_groups: Counts, sources: Sequence[str]) -> list[tuple[str, int]]:
    """Return how many more reals each of these sources wants, the most first, where it wants any."""
    wanted = {
        source: reals_for(SOURCE_GROUPS - real_groups.get(source, {}).get("calibration", 0))
        for source in sources
    }
    return sorted(((s, n) for s, n in wanted.items() if n), key=lambda pair: (-pair[1], pair[0]))


def reals_for(groups: int) -> int:
    """Return about how many more reals, groups of their own, bring so many groups to calibrate on."""
    return max(0, math.ceil(groups / CALIBRATION_SHARE / _STEP) * _STEP)


def _advice(real_groups: Counts, items: Counts, waiting: Counts) -> list[str]:
    told = [thresholds_rest_on(real_groups)]
    if few := reals_wanted(real_groups, list(real_groups)):
        named = ", ".join(f"{source} (about {count} more reals)" for source, count in few[:_SHOWN])
        named += f" and {len(few) - _SHOWN} other sources" if len(few) > _SHOWN else ""
        told.append(
            f"A source has thresholds of its own from {SOURCE_GROUPS} such groups. Until then it is hardly"
            f" known how many of its reals are turned away: {named}."
        )
    for name, lacking in waiting.items():
        lacks = ", ".join(f"{count} for {split}" for split, count in lacking.items())
        mine = f"{name} will not be learnt yet: it lacks"
        what = "Nothing can be learnt yet: reals lack" if name == REAL else mine
        told.append(
            f"{what} {lacks}. A label goes to a split by itself: label about {_labels(lacking)} more."
        )
    if learnt := [name for name in items if name not in waiting and name != REAL]:
        told.append(f"It will know {', '.join(learnt)}; every other forgery it can at best call unknown.")
    return told


_SHARES = {"train": 0.6, "calibration": CALIBRATION_SHARE, "test": 0.2}


def _labels(lacking: Mapping[str, int]) -> int:
    """Return about how many labels bring what the splits lack."""
    return max(math.ceil(count / _SHARES[split]) for split, count in lacking.items())
