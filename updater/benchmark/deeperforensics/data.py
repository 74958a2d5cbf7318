"""What may be chosen of a run, and the data set's trees as it takes them: a listing for each variant."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import JsonValue

from ingest.records import CropPlan
from updater.benchmark.data.deeperforensics import load_deeperforensics, load_hidden
from updater.benchmark.deeperforensics.media import SMALL
from updater.benchmark.deeperforensics.tree import (
    HIDDEN_FOLDER,
    REALS_FOLDER,
    other_methods_test,
    write_deeperforensics,
)
from updater.benchmark.forgerynet.run import digest_of, make_once
from updater.data.layouts.entries import DataError, Entry, LayoutError, Listing
from updater.progress import Progress

TESTED = ("std", "sing", "rand", "mix2", "mix3", "mix4")
"""Variants of the data set: undistorted, at level 5, at any level, and mixes of so many."""
HIDDEN = "hidden"
_TRAINED = (*TESTED, *(f"level{level}" for level in range(1, 6)))
_TREE = "1"
"""counts what has changed in our own clips"""


class ChoiceError(DataError):
    """A choice that is none. One line: which, and what there is."""


@dataclass(frozen=True)
class Choices:
    """Everything that a run follows from, its media and its seed aside."""

    train: tuple[str, ...]
    """each trained on by itself: variants joined by "+", as in std+mix3"""
    test: tuple[str, ...]
    model: str
    synthetic: bool

    @classmethod
    def named(cls, train: str, test: str, model: str, *, synthetic: bool) -> "Choices":
        """Return the choices that the options NAME,NAME,… say. Raises ChoiceError."""
        choices = cls(_named(train), _named(test), model, synthetic)
        for training in choices.train:
            _each_of("train", variants_of(training), _TRAINED)
        _each_of("test", choices.test, TESTED)
        return choices

    def described(self) -> dict[str, JsonValue]:
        """Return every choice by name, for the record."""
        return asdict(self) | {"train": list(self.train), "test": list(self.test)}

    @property
    def of_distortions(self) -> str:
        """What is trained on where a model is tested under each distortion at each level."""
        return "std" if "std" in self.train else self.train[0]

    @property
    def trained_variants(self) -> Iterable[str]:
        """Every variant that any training is of."""
        return dict.fromkeys(variant for training in self.train for variant in variants_of(training))


@dataclass(frozen=True)
class Data:
    """What was read of a tree."""

    name: str
    digest: str
    variants: dict[str, Listing]
    hidden: tuple[Entry, ...]
    """empty where there is nothing for it"""
    plan: CropPlan
    notes: tuple[str, ...]

    def part(self, variant: str, split: str) -> tuple[Entry, ...]:
        """Return a split of a variant."""
        return tuple(entry for entry in self.variants[variant].entries if entry.split == split)


def read(
    choices: Choices,
    data: Path | None,
    reals: Path | None,
    hidden: Path | None,
    home: Path,
    progress: Progress,
) -> Data:
    """Read the variants that the choices name; without a folder, make our own clips once and read those.

    Raises LayoutError, and OSError.
    """
    if hidden is not None:  # before minutes go by
        load_hidden(hidden)
    if data is None:
        root = home / f"deeperforensics-{_TREE}"
        make_once(
            root,
            lambda aside: write_deeperforensics(aside, progress=lambda *at: progress("make clips", *at)),
        )
        data, reals, plan = root, root / REALS_FOLDER, SMALL
        hidden, name = hidden or root / HIDDEN_FOLDER, "synthetic"
    else:
        plan, name = CropPlan(), "deeperforensics"
    if not data.is_dir():
        raise LayoutError(f"--data {data} is no folder: name the one that holds manipulated_videos and lists")
    if reals is None or not reals.is_dir():
        raise LayoutError(f"--real {reals} is no folder: name FaceForensics++, whose videos the reals are")
    # The clips under one distortion at a time are made of those that have none.
    needed = dict.fromkeys([*choices.trained_variants, *choices.test, "std"])
    variants = {variant: load_deeperforensics(data, reals, variant) for variant in needed}
    test = load_hidden(hidden).entries if hidden is not None else other_methods_test(data, reals)
    notes = tuple(f"{of.name}: {note}" for of in variants.values() for note in of.notes)
    if not test:
        notes = (*notes, f"no {HIDDEN} test: it was never released, and there is no other method's folder")
    every = [entry for of in variants.values() for entry in of.entries]
    return Data(name, digest_of([*every, *test], data), variants, test, plan, notes)


def variants_of(train: str) -> tuple[str, ...]:
    """Return the variants that std+mix3 consists of."""
    return tuple(dict.fromkeys(train.split("+")))


def _named(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _each_of(option: str, names: Sequence[str], offered: Sequence[str]) -> None:
    for name in names:
        if name not in offered:
            raise ChoiceError(f"--{option} {name!r} is no variant: choose of {', '.join(offered)}")
