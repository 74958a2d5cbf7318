"""The evidence behind a candidate's gates: items that count against it, and forgotten ones."""

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from memory.records import REAL
from updater.candidate.evaluate import Calls
from updater.candidate.gates import FORGOTTEN, ITEMS_SHOWN, REALS_FAKE, REALS_UNKNOWN, naming
from updater.candidate.robustness import mean_over_groups
from updater.data.training_data import LabelledCrops, Splits
from updater.evaluation_parts import Flip, Flips
from updater.gate_records import Behind, Forgotten
from updater.intervals import CONFIDENCE
from updater.measures import balanced_weights


def behind_gates(
    items: LabelledCrops, before: Calls | None, after: Calls, new: tuple[str, ...], old: tuple[str, ...]
) -> dict[str, Behind]:
    """Return the items behind each gate on them, by the gate's name; of the others there are none.

    before: what the live release says of the n items, None where nothing is live; old: its families. The
    worst come first: reals called unknown or fake by those scores, forgeries by how little they seem forged.
    """
    classes, named = np.array(items.families), after.correctly_named(items)
    of_reals = classes == REAL
    behind = {
        REALS_UNKNOWN: _behind(items, of_reals & (after.labels == "unknown"), after.unknown),
        REALS_FAKE: _behind(items, of_reals & (after.labels == "fake"), after.fake),
    }
    behind |= {naming(name): _behind(items, (classes == name) & ~named, -after.fake) for name in new}
    if before is not None:
        lost = np.isin(classes, old) & before.correctly_named(items) & ~named
        behind[FORGOTTEN] = _behind(items, lost, -after.fake)
    return {name: of for name, of in behind.items() if of.items}


def _behind(items: LabelledCrops, chosen: NDArray[np.bool_], worst: NDArray[np.floating]) -> Behind:
    places = np.flatnonzero(chosen)
    ordered = places[np.argsort(-worst[places], kind="stable")]
    names, counts = np.unique(np.array(items.sources)[places], return_counts=True)
    most = np.argsort(-counts, kind="stable")
    return Behind(
        items=tuple(items.ids[place] for place in ordered[:ITEMS_SHOWN]),
        sources={str(names[k]): int(counts[k]) for k in most},
    )


def forgetting(
    items: LabelledCrops, before: Calls | None, after: Calls, old: tuple[str, ...]
) -> Forgotten | None:
    """Return by how much the share named of the old families fell; None where there is none.

    Student's t interval of the mean paired difference, as `robustness.lost_on` has it: families weigh the
    same, groups are the witnesses. With fewer than two groups nothing is excluded.
    """
    mine = np.isin(np.array(items.families), old)
    if before is None or not mine.any():
        return None
    fell = before.correctly_named(items)[mine].astype(float) - after.correctly_named(items)[mine]
    families, groups = (np.array(of)[mine] for of in (items.families, items.groups))
    mean, variance, count = mean_over_groups(fell, families, groups)
    reach = (
        float(stdtrit(count - 1, CONFIDENCE)) * math.sqrt(variance) if math.isfinite(variance) else math.inf
    )
    weights = balanced_weights(families, groups)
    return Forgotten(
        low=max(-1.0, mean - reach),
        high=min(1.0, mean + reach),
        groups=count,
        by_family={
            str(family): float(np.average(fell[families == family], weights=weights[families == family]))
            for family in np.unique(families)
        },
    )


def flips(items: LabelledCrops, before: Calls | None, after: Calls, classes: tuple[str, ...]) -> Flips | None:
    """Return which of the n items changed their name for the worse, and how many for the better.

    before, after: what the live release and the candidate say of them; None where nothing is live. classes:
    those that both know. The worst come first: reals by how forged they now seem, forgeries by how little.
    """
    if before is None:
        return None
    families, right = np.array(items.families), after.correctly_named(items)
    both, was_right = np.isin(families, classes), before.correctly_named(items)
    worst, old, new = np.where(families == REAL, after.fake, 1 - after.fake), before.names, after.names
    lost = np.flatnonzero(both & was_right & ~right)
    return Flips(
        items=int(both.sum()),
        lost=tuple(
            Flip(exemplar=items.ids[n], family=items.families[n], before=str(old[n]), after=str(new[n]))
            for n in lost[np.argsort(-worst[lost], kind="stable")]
        ),
        won=int((both & right & ~was_right).sum()),
    )


def real_groups(splits: Splits) -> dict[str, Counter[str]]:
    """Return how many groups of real items each source has, by split."""
    counted: dict[str, Counter[str]] = {}
    for split in ("train", "calibration", "test"):
        items: LabelledCrops = getattr(splits, split)
        pairs = {
            (source, group)
            for source, group, family in zip(items.sources, items.groups, items.families, strict=True)
            if family == REAL
        }
        for source, _ in sorted(pairs):
            counted.setdefault(source, Counter())[split] += 1
    return counted
