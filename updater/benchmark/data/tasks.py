"""A stream of tasks, the outliers that it is tested with, and functions for every layout."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from ingest.records import CropPlan
from memory.records import REAL
from updater.data.layouts.entries import LayoutError
from updater.data.training_data import LabelledCrops

FAKE = "fake"

PARTS = ("train", "calibration", "test")
"""of a task"""
Distance = Literal["near", "far"]
"""how far outliers are from what is known: near ones differ in what they show, far ones in all (OpenCIL)"""


@dataclass(frozen=True)
class Task:
    """One step of a stream. Items' families are class names, and their sources are the task's name.

    A class is "TASK/real" or "TASK/fake" where tasks are sources of forgeries, else the name of its folder.
    The three parts share no group. An item's id is NAME@DIGEST: where its medium came from, and its SHA-256.
    """

    name: str
    train: LabelledCrops
    calibration: LabelledCrops
    """held back from training, to set thresholds by; may be empty"""
    test: LabelledCrops

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in the order of their names, except that reals come before their fakes."""
        names = {*self.train.families, *self.calibration.families, *self.test.families}
        return tuple(sorted(names, key=lambda name: (not is_real(name), name)))


@dataclass(frozen=True)
class OutlierSet:
    """Items of no class that is known at the steps (from 0) from from_step up to, not including, until_step.

    A set that never becomes a task grows with the steps, as OpenCIL (Miao et al. 2024, Eq. 6) has it, so
    that outliers and test items of the known classes keep their ratio. One that becomes a task is whole
    until then.
    """

    name: str
    items: LabelledCrops
    from_step: int = 0
    until_step: int | None = None
    distance: Distance | None = None

    def at(self, step: int, steps: int) -> LabelledCrops:
        """Return the items to test with after step `step` (from 0) of `steps`; none outside of its time.

        Of a set of N that grows, the first floor(N · (step + 1) / steps) items.
        """
        if step < self.from_step or (self.until_step is not None and step >= self.until_step):
            return self.items.take([])
        if self.until_step is not None:
            return self.items
        return self.items.take(range(len(self.items) * (step + 1) // steps))


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they are learnt, and sets of outliers to reject on the way."""

    name: str
    tasks: tuple[Task, ...]
    outliers: tuple[OutlierSet, ...] = ()
    plan: CropPlan = field(default_factory=CropPlan)
    """by which every item was cut"""
    notes: tuple[str, ...] = ()
    """a line for each kind of file that was left out"""
    folder: Path | None = None
    """that the names in items' ids are of; None where items are no pictures in files"""

    @cached_property
    def digest(self) -> str:
        """SHA-256, hexadecimal, over every part's name, its items' classes and their media's digests.

        The place of the files is not in it, nor the crop plan: `plan` has that.
        """
        return hashlib.sha256("".join(f"{line}\n" for line in self._lines()).encode()).hexdigest()

    def _lines(self) -> Iterator[str]:
        for task in self.tasks:
            for part in PARTS:
                yield f"task {task.name} {part}"
                yield from _item_lines(getattr(task, part))
        for outliers in self.outliers:
            distance = f" {outliers.distance}" if outliers.distance else ""
            yield f"outliers {outliers.name} {outliers.from_step} {outliers.until_step}{distance}"
            yield from _item_lines(outliers.items)


def _item_lines(items: LabelledCrops) -> Iterator[str]:
    for family, item in zip(items.families, items.ids, strict=True):
        yield f"{family} {media_digest(item)}"


def media_digest(item: str) -> str:
    """Return the SHA-256 of the medium, hexadecimal, from an item's id."""
    return item.rpartition("@")[2]


def is_real(class_name: str) -> bool:
    """Say whether a class is of real media: "real" itself or "TASK/real"."""
    return class_name.rpartition("/")[2] == REAL


def shuffle(items: LabelledCrops, seed: int) -> LabelledCrops:
    """Return the items in a drawn order: the first of a set that grows are then of all its classes."""
    return items.take(np.random.default_rng(seed).permutation(len(items)))


def hold_back(items: LabelledCrops, share: float, seed: int) -> tuple[LabelledCrops, LabelledCrops]:
    """Split items in two, (kept, held back), both in the items' order. share in 0 <= share < 1.

    Of each class round(share · items) are held back, at least one where share is above 0: of 12 shots
    at 0.25, three. Groups stay whole, so a class whose groups are large may be off by a part of one.
    share 0 holds nothing back. Raises LayoutError where a class would keep nothing.
    """
    if not share:
        return items, items.take([])
    rng = np.random.default_rng(seed)
    back: set[str] = set()
    for name in sorted(set(items.families)):
        groups = [g for g, of in zip(items.groups, items.families, strict=True) if of == name]
        sizes = Counter(groups)
        wanted = max(1, round(share * len(groups)))
        held = sum(sizes[group] for group in back & sizes.keys())
        for group in rng.permutation(sorted(sizes.keys() - back)):
            if held >= wanted:
                break
            back.add(str(group))
            held += sizes[group]
        if held == len(groups):
            raise LayoutError(
                f"class {name} has {len(groups)} training items in {len(sizes)} groups, too few to hold"
                f" back {share:.0%}: add some, or hold nothing back"
            )
    chosen = np.array([group in back for group in items.groups], bool)
    return items.take(np.flatnonzero(~chosen)), items.take(np.flatnonzero(chosen))
