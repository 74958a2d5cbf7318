"""The data behind a release's thresholds, told before it is trained and in its card. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from memory.records import CALIBRATION_SHARE, REAL, LabelledCount
from updater.records import Outlook

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

Counts = Mapping[str, Mapping[str, int]]


def outlook(real_groups: Counts, items: Counts) -> Outlook:
    """Return the data of an update: groups of reals by source and split, items of classes by split."""
    waiting = {
        name: {split: LEAST[split] - of.get(split, 0) for split in LEAST if of.get(split, 0) < LEAST[split]}
        for name, of in items.items()
    }
    waiting = {name: lacking for name, lacking in waiting.items() if lacking}
    sentences = TEMPLATES.get_template("outlook.md.j2").render(
        real_groups=real_groups,
        few=reals_wanted(real_groups, list(real_groups)),
        source_groups=SOURCE_GROUPS,
        waiting=waiting,
        learnt=[name for name in items if name not in waiting and name != REAL],
        labels_for=_labels_for,
    )
    lines = tuple(sentences.splitlines())
    return Outlook(real_groups=real_groups, items=items, waiting=waiting, told=lines)


def outlook_of(labelled: Iterable[LabelledCount]) -> Outlook:
    """Return the outlook of an update that is trained on everything with a label now."""
    items: dict[str, Counter[str]] = {}
    real_groups: dict[str, Counter[str]] = {}
    for count in labelled:
        items.setdefault(count.family, Counter())[count.split] += count.items
        if count.family == REAL:
            real_groups.setdefault(count.source, Counter())[count.split] += count.groups
    return outlook(real_groups, items)


def reals_wanted(real_groups: Counts, sources: Sequence[str]) -> list[tuple[str, int]]:
    """Return how many more reals each of these sources wants, the most first, where it wants any."""
    held = {source: real_groups.get(source, {}).get("calibration", 0) for source in sources}
    wanted = {source: reals_for(SOURCE_GROUPS - groups) for source, groups in held.items()}
    return sorted(((s, n) for s, n in wanted.items() if n), key=lambda pair: (-pair[1], pair[0]))


def reals_for(groups: int) -> int:
    """Return about how many more reals, groups of their own, bring so many groups to calibrate on."""
    return max(0, math.ceil(groups / CALIBRATION_SHARE / _STEP) * _STEP)


_SHARES = {"train": 0.6, "calibration": CALIBRATION_SHARE, "test": 0.2}


def _labels_for(lacking: Mapping[str, int]) -> int:
    """Return about how many labels fill the splits' gaps."""
    return max(math.ceil(count / _SHARES[split]) for split, count in lacking.items())


TEMPLATES = Environment(
    loader=PackageLoader("updater.candidate", "."),
    autoescape=False,  # noqa: S701 - Markdown
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.globals.update(UNKNOWN_GROUPS=UNKNOWN_GROUPS, FAKE_GROUPS=FAKE_GROUPS, reals_for=reals_for)
