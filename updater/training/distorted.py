"""Distorted copies of training items beside the items themselves, so that distortions tell no class.

DeeperForensics-1.0 (section 5) trains on "std + rand" and "std + mix" so: what is added are the same media
under its distortions. A copy keeps the label, the source and the group of what it shows.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from updater.data.stored_rows import collected, joined_rows
from updater.data.training_data import LabelledCrops
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import Step
from updater.distortions.methods import distort_crops, drawn, without_kinds
from updater.training.augmentations import Distorted, Strength
from updater.training.pools import with_crop_features

HARDEST = 5
MAX_CROPS = 3
"""of a copy, drawn from its item's: a step of training sees one of them"""


def steps_of(rng: np.random.Generator, strength: Strength, without: frozenset[str]) -> tuple[Step, ...]:
    """Draw what one copy is distorted by: of the seven, those that have nothing of the kinds left out.

    A mix has no more than are left, and where none is left there are no steps.
    """
    names = without_kinds(tuple(DEEPERFORENSICS), without)
    count = int(strength.removeprefix("mix")) if strength.startswith("mix") else 1
    return drawn(rng, min(count, len(names)), HARDEST if strength == "sing" else None, names)


def with_distorted(
    items: LabelledCrops,
    distorted: Distorted,
    without: frozenset[str],
    seed: int,
    device: torch.device,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> LabelledCrops:
    """Return the items with distorted copies of some behind them; without any where no distortion is left.

    without: kinds that stay out, in the words of the pseudo-forgeries. The same seed gives the same copies.
    Where the items have the forensic features of their crops, the copies get theirs.
    """
    count = round(len(items) * distorted.share)
    if not count or not without_kinds(tuple(DEEPERFORENSICS), without):
        return items
    chosen = items.take(_chosen(np.random.default_rng([seed, 9]), len(items), count))
    kept = [_rows(seed, number, chosen) for number in range(count)]

    def copies() -> Iterator[NDArray[np.uint8]]:
        for number, rows in enumerate(kept):
            rng = np.random.default_rng([seed, 11, number])
            yield distort_crops(rng, chosen.crops[rows], steps_of(rng, distorted.strength, without))
            progress("distorted copies", number + 1, count)

    made = replace(
        chosen,
        ids=tuple(f"{one}-distorted-{number}" for number, one in enumerate(chosen.ids)),
        crops=collected(copies()),
        starts=np.cumsum([0, *map(len, kept)]).astype(np.int64),
        features=None,
        crop_features=None,
    )
    if items.crop_features is not None:
        made = with_crop_features(made, device, lambda *at: progress("features of these", *at))
    return LabelledCrops(
        ids=items.ids + made.ids,
        families=items.families + made.families,
        sources=items.sources + made.sources,
        groups=items.groups + made.groups,
        crops=joined_rows([items.crops, made.crops]),
        starts=np.concatenate([items.starts, items.starts[-1] + made.starts[1:]]),
        crop_features=None
        if items.crop_features is None
        else joined_rows([items.crop_features, made.crop_features]),
    )


def _chosen(rng: np.random.Generator, items: int, count: int) -> NDArray[np.int64]:
    """Draw which items are copied: all of them equally often, to within one."""
    rounds = [rng.permutation(items) for _ in range(-(-count // items))]
    return np.concatenate(rounds)[:count]


def _rows(seed: int, number: int, items: LabelledCrops) -> NDArray[np.int64]:
    first, end = int(items.starts[number]), int(items.starts[number + 1])
    rng = np.random.default_rng([seed, 10, number])
    return first + rng.permutation(end - first)[:MAX_CROPS].astype(np.int64)
