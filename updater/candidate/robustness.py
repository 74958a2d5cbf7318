"""How releases fare on held-back items under DeeperForensics-1.0's seven distortions, at two levels of five.

An item is a few of its crops here, and they are judged a few items at a time until so many are, or the time
that an update has for it is over. All that is compared gets the same items, distorted by the same draws. What
is said of an item undistorted stands beside, for it is of these crops too.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import structlog
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from memory.records import REAL
from updater.candidate.evaluate import GatedModel
from updater.candidate.gates import ITEMS_SHOWN
from updater.data.stored_rows import chosen_rows
from updater.data.training_data import LabelledCrops
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import Step
from updater.distortions.methods import distort_crops
from updater.draws import SeedPurpose
from updater.intervals import CONFIDENCE
from updater.measures import balanced_weights
from updater.progress import Steps, no_steps
from updater.records import Lost, Robustness

log = structlog.get_logger()

LEVELS = (1, 3)
STEPS = tuple(Step(name, level) for name in DEEPERFORENSICS for level in LEVELS)
MAX_ITEMS = 160
"""half of them reals, and the other half of all families in turn"""
MAX_CROPS = 2
"""of an item, spread evenly over those that it has"""
MAX_S = 50.0
"""A minute is allowed; the rest is for a machine that becomes slower."""
Right = NDArray[np.bool_]
"""of each item, whether a model calls it what it is, [n]; or of each step and item, [s, n]"""
_FEWEST, _MOST = 2, 8
"""items that are judged between two looks at the clock, first the fewest"""


def measure_robustness(
    candidate: GatedModel,
    live: GatedModel | None,
    items: LabelledCrops,
    seed: int,
    progress: Steps = no_steps,
    max_s: float = MAX_S,
) -> tuple[Robustness, Robustness | None]:
    """Measure both on the same held-back items under the same distortions, within max_s seconds.

    Two items are always measured, however slow the models are. The candidate's says what it has lost against
    the live release.
    """
    begun, order = time.monotonic(), _order(items, seed)
    rights: list[list[Right]] = [[], []] if live else [[]]
    done = 0
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for count in _portions(len(order), begun, max_s):
            progress(done, len(order))
            some = _few_crops(items.take(order[done : done + count]))

            def by_all(step: Step | None, some: LabelledCrops = some, before: int = done) -> list[Right]:
                seen = some if step is None else _distort_items(some, step, seed, before)
                calls = candidate.calls(seen)
                others = [live.calls(seen, features=calls.features)] if live else []
                return [judged.right(seen) for judged in (calls, *others)]

            found_of = zip(*pool.map(by_all, (None, *STEPS)), strict=True)
            for right, of_steps in zip(rights, found_of, strict=True):
                right.append(np.array(of_steps))
            done += count
    progress(len(order), len(order))
    log.info("judged under distortions", items=done, of=len(order), s=round(time.monotonic() - begun, 1))
    used = items.take(order[:done])
    joined = [np.concatenate(right, 1) for right in rights]
    if live is None:
        return _robustness(used, joined[0]), None
    after, before = joined
    lost = _lost_items(used, before, after, live.classes)
    return _robustness(used, after, lost), _robustness(used, before)


def _portions(items: int, begun: float, max_s: float) -> Iterator[int]:
    """Yield how many items to judge next, until all are or no more would be done by max_s after `begun`."""
    done, count, before = 0, min(_FEWEST, items), begun
    while count:
        yield count
        done, now = done + count, time.monotonic()
        # The slower of what an item took on average and of late.
        took_s = max((now - begun) / done, (now - before) / count)
        fitting = int((begun + max_s - now) / took_s) if took_s else items
        count, before = max(0, min(_MOST, items - done, fitting)), now


def _order(items: LabelledCrops, seed: int) -> list[int]:
    """Draw reals and forgeries in turn, these of all families in turn: so the first are drawn like all."""
    families, turns = np.array(items.families), dict.fromkeys(items.families, 0)
    real: list[tuple[int, int]] = []
    forged: list[tuple[int, int]] = []
    for place in SeedPurpose.ROBUSTNESS_ITEMS.generator(seed).permutation(len(items)).tolist():
        turns[families[place]] += 1
        (real if families[place] == REAL else forged).append((turns[families[place]], place))
    half = MAX_ITEMS // 2
    forged.sort(key=lambda pair: pair[0])
    sides = [[place for _, place in side[:half]] for side in (real, forged)]
    longest = max(map(len, sides))
    return [side[number] for number in range(longest) for side in sides if number < len(side)]


def _few_crops(items: LabelledCrops) -> LabelledCrops:
    rows, starts = [], [0]
    for first, end in zip(items.starts[:-1], items.starts[1:], strict=True):
        count = min(MAX_CROPS, int(end - first))
        rows.append(np.linspace(first, end - 1, count).round().astype(np.int64))
        starts.append(starts[-1] + count)
    crops = chosen_rows(items.crops, np.concatenate(rows))
    return replace(items, crops=crops[:], starts=np.array(starts), crop_features=None)


def _distort_items(items: LabelledCrops, step: Step, seed: int, before: int) -> LabelledCrops:
    """Distort each item's crops, and its whole picture, by draws of its own; before: items judged earlier."""
    crops = np.empty_like(items.crops[:])
    pictures = None if items.pictures is None else np.empty_like(items.pictures[:])
    for number in range(len(items)):
        rows = slice(items.starts[number], items.starts[number + 1])
        crops[rows] = distort_crops(_rng(seed, before + number), items.crops[rows], [step])
        if pictures is not None and items.pictures is not None:
            row = slice(number, number + 1)
            pictures[row] = distort_crops(_rng(seed, before + number), items.pictures[row], [step])
    return replace(items, crops=crops, pictures=pictures)


def _rng(seed: int, number: int) -> np.random.Generator:
    return SeedPurpose.ROBUSTNESS.generator(seed, number)


def _robustness(items: LabelledCrops, right: NDArray[np.bool_], lost: Lost | None = None) -> Robustness:
    """right: bool [1 + m, n], first undistorted and then under each of STEPS."""
    undistorted, *under = (_by_class(items, hits) for hits in right)
    return Robustness(
        items=items.counts(),
        undistorted=undistorted,
        distorted={str(step): classes for step, classes in zip(STEPS, under, strict=True)},
        lost=lost,
    )


def _lost_items(
    items: LabelledCrops, before: NDArray[np.bool_], after: NDArray[np.bool_], classes: Sequence[str]
) -> Lost | None:
    known = np.isin(np.array(items.families), classes)
    families, groups, ids = (np.array(of)[known].tolist() for of in (items.families, items.groups, items.ids))
    lost = lost_on(before[1:, known], after[1:, known], families, groups)
    fell = before[1:, known].sum(0) - after[1:, known].astype(np.int64).sum(0)
    worst = [ids[place] for place in np.argsort(-fell, kind="stable")[:ITEMS_SHOWN] if fell[place] > 0]
    return lost and lost.model_copy(update={"items": tuple(worst)})


def _by_class(items: LabelledCrops, right: NDArray[np.bool_]) -> dict[str, float]:
    """Return the share of each class that is right; groups of one class weigh the same."""
    families = np.array(items.families)
    weights = balanced_weights(families, np.array(items.groups))
    return {
        family: float(np.average(right[families == family], weights=weights[families == family]))
        for family in sorted(set(items.families))
    }


def lost_on(
    before: ArrayLike, after: ArrayLike, families: Sequence[str], groups: Sequence[str]
) -> Lost | None:
    """Return by how much the accuracy on n items fell from the live release to the candidate.

    before, after: bool [m, n], whether each called each item what it is under each of m distortions.
    families, groups: of each item. The accuracy is that of `report.accuracy`, averaged over the distortions:
    reals weigh half, the families share the other half equally, and groups share their family's. None without
    a real or without a forgery.

    The ends are those of Student's t interval of the weighted mean of paired differences. Groups are the
    witnesses, with all m distortions of a group one, since these are not independent; the distortions and the
    training's seed are taken as given. With fewer than two groups of reals or of forgeries nothing is
    excluded, and the ends are -1 and 1.

    What it can see, simulated with releases that are right in 75 % and share half of what makes an item hard:
    of candidates that are truly 15 points worse, `low` is above 5 points in 96 of 100 with 80 + 80 items, 81
    with 40 + 40, 54 with 20 + 20, 33 with 10 + 10 and 17 with 5 + 5. Of equal ones it is so in at most 1 of
    100, where `share` alone is in 3, 8, 17, 26 and 31.
    """
    fell = np.asarray(before, np.float64).mean(0) - np.asarray(after, np.float64).mean(0)
    real = np.array(families) == REAL
    if not len(fell) or real.all() or not real.any():
        return None
    sides = [mean_over_groups(fell[of], np.array(families)[of], np.array(groups)[of]) for of in (real, ~real)]
    share = sum(mean for mean, _, _ in sides) / 2
    freedom = sum(count - 1 for _, _, count in sides)
    spread = math.sqrt(sum(variance for _, variance, _ in sides)) / 2
    reach = float(stdtrit(freedom, CONFIDENCE)) * spread if math.isfinite(spread) else math.inf
    return Lost(
        share=share,
        low=max(-1.0, share - reach),
        high=min(1.0, share + reach),
        reals=int(real.sum()),
        forgeries=int((~real).sum()),
    )


def mean_over_groups(
    values: NDArray[np.float64], families: NDArray[np.str_], groups: NDArray[np.str_]
) -> tuple[float, float, int]:
    """Return the weighted mean over the groups, its variance and their number; families weigh the same."""
    weights = balanced_weights(families, groups)
    mean = float(weights @ values)
    _, of = np.unique(np.stack([families, groups], 1), axis=0, return_inverse=True)
    parts = np.bincount(of, weights * (values - mean))
    count = len(parts)
    return mean, float(parts @ parts) * count / (count - 1) if count > 1 else math.inf, count
