"""The choices of a run (task, network, its input and training), and a task's job.

The classes of two, three and n are He et al. 2021, section 3.2. Our own stream's families stand in the
directories 1 to 8, and take the names and the kinds that are given here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from pydantic import JsonValue

from memory.records import REAL
from updater.benchmark.report.harness import Seed
from updater.data.layouts.entries import Entry
from updater.data.layouts.forgerynet import APPROACHES, Kind, Medium
from updater.progress import Progress, no_progress

Kinds = Mapping[str, Kind]
"""families in the order of their directories, each with what becomes of the identity"""

KINDS: tuple[Kind, ...] = ("remained", "replaced")
OWN: dict[str, Kind] = {
    "blended": "replaced",
    "inpainted": "replaced",
    "upsampled": "replaced",
    "autoencoded": "replaced",
    "recompressed": "remained",
    "sharpened": "remained",
    "periodic": "remained",
    "smoothed": "remained",
}
"""our stream's families; the first stand for an identity that is replaced"""


def families_of(medium: Medium, *, synthetic: bool) -> Kinds:
    """Return the families that a tree of pictures, or of videos, may have."""
    if synthetic:
        return OWN
    return {kind.name: kind.kind for kind in APPROACHES.values() if kind.in_videos or medium == "image"}


def with_own_names(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries of our own media, which the reader named by the directories that they stand in."""
    names = {APPROACHES[number].name: name for number, name in enumerate(OWN, 1)}
    return tuple(replace(entry, family=names.get(entry.family, entry.family)) for entry in entries)


def class_of(family: str, kinds: Kinds, classes: int) -> int:
    """Return the number of a family's class of so many; 0 is real. Raises KeyError for an unknown family."""
    if family == REAL:
        return 0
    kind = kinds[family]
    if classes == 2:
        return 1
    if classes == 3:
        return 1 + KINDS.index(kind)
    return 1 + list(kinds).index(family)


def class_names(kinds: Kinds, classes: int) -> tuple[str, ...]:
    if classes == 2:
        return REAL, "forged"
    return (REAL, *KINDS) if classes == 3 else (REAL, *kinds)


def in_group(family: str, kinds: Kinds, group: str) -> bool:
    """Say whether a forged family is of a group: a kind, or a family by itself."""
    return family != REAL and group in (family, kinds[family])


Input = Literal["face", "native"]
"""face: the largest face, scaled, as the paper has it; native: pixels as they are"""
Augmentation = Literal["weak", "normal", "enhanced"]
Crops = Literal["single", "multi"]
"""single: one crop, or the middle clip; multi: what covers the whole, averaged"""
Protocol = Literal["intra", "cross"]

_OF_CLASSIFIERS = ("classes", "crops")
_OF_NETWORKS = ("augmentation", "px", "batch", "rate", "pretrained", "checkpoint")
EACH = "each"
"""as a group to train on: every family by itself"""


class ChoiceError(ValueError):
    """An unknown choice, or one that does not go with another. One line: which, and the known ones."""


@dataclass(frozen=True)
class Choices:
    """Everything that a run follows from, its media and its seed aside. None: as the recipe has it."""

    task: str
    model: str
    synthetic: bool
    classes: int = 2
    protocol: Protocol = "intra"
    train_on: tuple[str, ...] = ()
    """groups that are trained on one after the other; none: the two kinds, or everything where it is intra"""
    input: Input = "face"
    augmentation: Augmentation = "enhanced"
    crops: Crops = "single"
    px: int | None = None
    """side of the network's input"""
    batch: int | None = None
    steps: int | None = None
    rate: float | None = None
    pretrained: bool = False
    """begin with timm's or torchvision's weights, which are downloaded"""
    checkpoint: str | None = None
    """SHA-256 of the file of weights that it begins with, hexadecimal"""

    @classmethod
    def usual(cls, task: str, model: str, *, synthetic: bool) -> "Choices":
        """Return the default choices: data as in the paper, our own media as they are."""
        if not synthetic:
            return cls(task, model, synthetic)
        return cls(task, model, synthetic, input="native", augmentation="weak")

    def as_record(self) -> dict[str, JsonValue]:
        return asdict(self) | {"train_on": list(self.train_on)}


@dataclass(frozen=True)
class Job:
    """A task's input: media, choices and a seed. The three splits share no group."""

    train: tuple[Entry, ...]
    held_back: tuple[Entry, ...]
    """the validation, to set thresholds by; empty where it is what is reported, as the paper has it"""
    test: tuple[Entry, ...]
    kinds: Kinds
    choices: Choices
    seed: int
    device: torch.device
    folder: Path
    """for what training goes on from when it was interrupted"""
    cache: Path
    """for what was found out of files once: of all runs"""
    weights: Path | None = None
    """a file to begin with"""
    progress: Progress = no_progress

    def of(self, seed: Seed) -> "Job":
        return replace(self, seed=seed.number, folder=seed.parts, progress=seed.progress)


def check_choices(choices: Choices, kinds: Kinds) -> Choices:
    """Return the choices.

    Raises ChoiceError where one is none, does not fit the tree's families, or would change nothing.
    """
    for name, offered in (
        ("input", Input),
        ("augmentation", Augmentation),
        ("crops", Crops),
        ("protocol", Protocol),
    ):
        _one_of(name, getattr(choices, name), get_args(offered))
    # Two, three, and each family by itself.
    _one_of("classes", choices.classes, (2, 3, 1 + len(kinds)))
    usual = Choices.usual(choices.task, choices.model, synthetic=choices.synthetic)
    for name in _without_effect(choices):
        if getattr(choices, name) != getattr(usual, name):
            task, option = f"--task {choices.task} with --model {choices.model}", name.replace("_", "-")
            raise ChoiceError(f"--{option} changes nothing of {task}: leave it out")
    if choices.protocol == "cross" and choices.classes != 2:
        raise ChoiceError("the protocol cross tells real from forged: choose --classes 2")
    for group in choices.train_on:
        _one_of("train-on", group, (*KINDS, *kinds))
    if len(choices.train_on) > 1 and choices.protocol == "intra":
        raise ChoiceError("several groups are trained on one after the other with --protocol cross")
    return choices


def _without_effect(choices: Choices) -> tuple[str, ...]:
    """Return the choices that are another task's or another network's."""
    if choices.task == "temporal":
        return (*_OF_CLASSIFIERS, *_OF_NETWORKS, "input", "steps")
    if choices.task == "spatial":
        own = choices.model.partition(":")[0] == "localizer"
        return ("train_on", *_OF_CLASSIFIERS, *(_OF_NETWORKS if own else ()))
    return ()


def groups_named(text: str | None, kinds: Kinds) -> tuple[str, ...]:
    """Return the groups of an option: NAME,NAME,… or "each" for every family."""
    if text is None:
        return ()
    return tuple(kinds) if text == EACH else tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _one_of(name: str, value: object, offered: Sequence[object]) -> None:
    if value not in offered:
        raise ChoiceError(
            f"--{name} {value or repr(value)} is none here: choose of {', '.join(map(str, offered))}"
        )
