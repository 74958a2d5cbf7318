"""How releases fare on held-back items under DeeperForensics-1.0's seven distortions, at two levels of five.

An item is a few of its crops here, and the items are drawn, so that an update spends about a minute on it,
and more only where a model is slow. All that is compared gets the same items, distorted by the same draws.
What is said of an item undistorted stands beside, for it is of these crops too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from detector.contract import PICTURE
from detector.gate import GateParameters
from detector.session import Session
from memory.records import REAL
from updater.candidate.evaluate import labelled, score_items
from updater.distortions.crops import distort_crops
from updater.distortions.distortion import Step
from updater.distortions.methods import DEEPERFORENSICS
from updater.measures import balanced_weights
from updater.records import Robustness
from updater.stored_rows import chosen_rows
from updater.training_data import LabelledCrops

LEVELS = (1, 3)
STEPS = tuple(Step(name, level) for name in DEEPERFORENSICS for level in LEVELS)
MAX_ITEMS = 160
"""half of them reals, and the other half of all families in turn"""
MAX_CROPS = 2
"""of an item, spread evenly over those that it has"""
MAX_S = 60.0
"""Where all models together would take longer, there are fewer items, but not fewer than MIN_ITEMS, which
take a slow model longer."""
MIN_ITEMS = 40


@dataclass(frozen=True)
class Judge:
    """A model with its gate."""

    session: Session
    gate: GateParameters
    classes: tuple[str, ...]
    """by logit, the first is real"""

    def shown(self, items: LabelledCrops) -> LabelledCrops:
        """Return the items as this model takes them: without their pictures where it looks at none."""
        pictured = any(one.name == PICTURE for one in self.session.contract.inputs)
        return items if pictured else replace(items, pictures=None)

    def right(self, items: LabelledCrops) -> NDArray[np.bool_]:
        """Return which items are called what they are, bool [n]: reals real, forgeries anything else."""
        labels, _ = labelled(score_items(self.session, self.shown(items)), self.gate, self.classes)
        return np.asarray((labels == REAL) == (np.array(items.families) == REAL))


def measure_robustness(
    judges: Sequence[Judge],
    items: LabelledCrops,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    max_s: float = MAX_S,
) -> list[Robustness]:
    """Measure every judge on the same held-back items under the same distortions."""
    some = _drawn(items, MAX_ITEMS, seed)
    begun = time.monotonic()
    right = [[judge.right(some)] for judge in judges]
    took_s = time.monotonic() - begun
    fitting = int(len(some) * max_s / (took_s * (1 + len(STEPS))))
    if max(fitting, MIN_ITEMS) < len(some):
        few = _drawn(items, max(fitting, MIN_ITEMS), seed)
        kept = np.isin(np.array(some.ids), few.ids)
        some, right = few, [[undistorted[kept]] for (undistorted,) in right]
    for number, step in enumerate(STEPS):
        progress(number, len(STEPS))
        distorted = _distorted(some, step, seed)
        for judge, found in zip(judges, right, strict=True):
            found.append(judge.right(distorted))
    progress(len(STEPS), len(STEPS))
    shares = [[_by_class(some, one) for one in found] for found in right]
    return [
        Robustness(
            items=some.counts(),
            undistorted=undistorted,
            distorted={str(step): one for step, one in zip(STEPS, under, strict=True)},
        )
        for undistorted, *under in shares
    ]


def _drawn(items: LabelledCrops, count: int, seed: int) -> LabelledCrops:
    """Draw half of the items from the reals, and the others from all families in turn, with a few crops each.

    Fewer items of one seed are among more of them.
    """
    rng = np.random.default_rng([seed, 7])
    families, order = np.array(items.families), rng.permutation(len(items))
    real = [place for place in order if families[place] == REAL]
    turns: dict[str, int] = {}
    forged = []
    for place in order:
        if families[place] != REAL:
            turns[families[place]] = turns.get(families[place], 0) + 1
            forged.append((turns[families[place]], str(families[place]), place))
    half = (count + 1) // 2
    chosen = items.take(sorted([*real[:half], *(place for _, _, place in sorted(forged)[: count // 2])]))
    return _few_crops(chosen)


def _few_crops(items: LabelledCrops) -> LabelledCrops:
    rows, starts = [], [0]
    for first, end in zip(items.starts[:-1], items.starts[1:], strict=True):
        count = min(MAX_CROPS, int(end - first))
        rows.append(np.linspace(first, end - 1, count).round().astype(np.int64))
        starts.append(starts[-1] + count)
    crops = chosen_rows(items.crops, np.concatenate(rows))
    return replace(items, crops=crops[:], starts=np.array(starts), crop_features=None)


def _distorted(items: LabelledCrops, step: Step, seed: int) -> LabelledCrops:
    """Distort each item's crops, and its whole picture, by draws of its own."""
    crops = np.empty_like(items.crops[:])
    pictures = None if items.pictures is None else np.empty_like(items.pictures[:])
    for number in range(len(items)):
        rows = slice(items.starts[number], items.starts[number + 1])
        crops[rows] = distort_crops(_rng(seed, number), items.crops[rows], [step])
        if pictures is not None and items.pictures is not None:
            one = slice(number, number + 1)
            pictures[one] = distort_crops(_rng(seed, number), items.pictures[one], [step])
    return replace(items, crops=crops, pictures=pictures)


def _rng(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, 8, number])


def _by_class(items: LabelledCrops, right: NDArray[np.bool_]) -> dict[str, float]:
    """Return the share of each class that is right; groups of one class weigh the same."""
    families = np.array(items.families)
    weights = balanced_weights(families, np.array(items.groups))
    return {
        family: float(np.average(right[families == family], weights=weights[families == family]))
        for family in sorted(set(items.families))
    }
