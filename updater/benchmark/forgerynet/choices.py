"""The tasks, the choices of a run (task, network, its input and training), and a task's job.

Nothing here loads torch: what is chosen wrongly is told at once.

The classes of two, three and n are He et al. 2021, section 3.2. Our own stream's families stand in the
directories 1 to 8, and take the names and the kinds that are given here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import JsonValue

from memory.records import REAL
from updater.benchmark.networks import names
from updater.benchmark.synthetic import DIRECTORIES
from updater.data.layouts.entries import Entry
from updater.data.layouts.forgerynet import APPROACHES, Kind, Medium
from updater.data.layouts.layouts import LAYOUTS
from updater.progress import Progress, no_progress

if TYPE_CHECKING:
    import torch

    from updater.benchmark.report.harness import Seed

Kinds = Mapping[str, Kind]
"""families in the order of their directories, each with what becomes of the identity"""

KINDS: tuple[Kind, ...] = ("remained", "replaced")
OWN: dict[str, Kind] = {name: "replaced" if n <= 4 else "remained" for name, n in DIRECTORIES.items()}
"""our stream's families; the first stand for an identity that is replaced"""


def families_of(medium: Medium, *, synthetic: bool) -> Kinds:
    """Return the families that a tree of pictures, or of videos, may have."""
    if synthetic:
        return OWN
    return {kind.name: kind.kind for kind in APPROACHES.values() if kind.in_videos or medium == "image"}


def with_own_names(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries of our own media, which the reader named by the directories that they stand in."""
    own = {APPROACHES[number].name: name for name, number in DIRECTORIES.items()}
    return tuple(replace(entry, family=own.get(entry.family, entry.family)) for entry in entries)


def class_of(family: str, kinds: Kinds, classes: int) -> int:
    """Return the number of a family's class of so many; 0 is real. Raises KeyError for an unknown family."""
    if family == REAL:
        return 0
    if classes == 2:
        return 1
    return 1 + (KINDS.index(kinds[family]) if classes == 3 else list(kinds).index(family))


def class_names(kinds: Kinds, classes: int) -> tuple[str, ...]:
    if classes == 2:
        return REAL, "forged"
    return (REAL, *KINDS) if classes == 3 else (REAL, *kinds)


def in_group(family: str, kinds: Kinds, group: str) -> bool:
    """Say whether a forged family is of a group: a kind, or a family by itself."""
    return family != REAL and group in (family, kinds.get(family))


Input = Literal["face", "native"]
"""face: the largest face, scaled, as the paper has it; native: pixels as they are"""
Augmentation = Literal["weak", "normal", "enhanced"]
Crops = Literal["single", "multi"]
"""single: one crop, or the middle clip; multi: what covers the whole, averaged"""
Protocol = Literal["intra", "cross"]

_OF_CLASSIFIERS = ("classes", "crops")
_OF_NETWORKS = ("augmentation", "px", "batch", "rate", "pretrained", "checkpoint")


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
    """the file of weights that it begins with: its path, and in a run's record its SHA-256, hexadecimal"""
    shuffled: int = 1
    """a video is shuffled in blocks of so many frames: the paper's table 14; 1: it is not; 0: as a whole"""
    test_on: str | None = None
    """LAYOUT=DIR: another data set to test on, as in the paper's table 12"""

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
    """A task's input: media, choices and a seed. The three splits share no group.

    held_back: the validation, to set thresholds by; empty where it is what is reported, as the paper has it.
    folder: for what training goes on from when it was interrupted. cache: for what was found out of files
    once, of all runs. weights: a file to begin with.
    """

    train: tuple[Entry, ...]
    held_back: tuple[Entry, ...]
    test: tuple[Entry, ...]
    kinds: Kinds
    choices: Choices
    seed: int
    device: "torch.device"
    folder: Path
    cache: Path
    weights: Path | None = None
    progress: Progress = no_progress

    def of(self, seed: "Seed") -> "Job":
        return replace(self, seed=seed.number, folder=seed.parts, progress=seed.progress)


LOCALIZER, FORENSIC = "localizer", "forensic"
"""the release's own: of maps, and its features under its learner, linear discriminants"""
EXTRACTORS = ("x3d_m", "slowfast_r50")
"""networks on videos whose features BSN and BMN are trained on in the paper's table 9"""
_OF_FEATURES = (f"{method}:{network}" for method in ("bsn", "bmn") for network in EXTRACTORS)
STRETCHES = ("convolutions", "frames", "bsn", "bmn", "bmn:small", *_OF_FEATURES)


def check_pictures(model: str) -> None:
    """Raise NetworkError for a model that tells no pictures apart."""
    if model != FORENSIC:
        names.check_image(model)


def check_spatial(model: str) -> None:
    """Raise ChoiceError or NetworkError for a model that makes no maps."""
    name, _, learns = model.partition(":")
    if name not in (known := (LOCALIZER, *names.DECODERS, names.REGRESSION, names.HRNET)):
        raise ChoiceError(f"--model {model or repr(model)} makes no maps: choose of {', '.join(known)}")
    if name != LOCALIZER:
        names.check_maps(model)
    elif learns not in ("", "pseudo", "left-out"):
        raise ChoiceError(f"--model {model} is none: choose of localizer, :pseudo and :left-out")


@dataclass(frozen=True)
class ForgeryTask:
    """A task: its medium, and its network on data of ForgeryNet's size and on our own, for a CPU's minutes.

    check: raises for a model's name that is none, before any media are made or read.
    """

    medium: Medium
    model: str
    small_model: str
    check: Callable[[str], None]


_SMALL = "highpass:mobilenetv3_small_100"
TASKS: Mapping[str, ForgeryTask] = {
    "image": ForgeryTask("image", "legacy_xception", _SMALL, check_pictures),
    "spatial": ForgeryTask("image", LOCALIZER, LOCALIZER, check_spatial),
    "video": ForgeryTask(
        "video", "x3d_m", f"frames:{_SMALL}", lambda model: names.check_video(model, names.FORGERYNETS)
    ),
    "temporal": ForgeryTask(
        "video", "convolutions", "convolutions", lambda model: _one_of("model", model, STRETCHES)
    ),
}


def check_choices(choices: Choices, kinds: Kinds) -> Choices:
    """Return the choices.

    Raises ChoiceError, of a model also NetworkError, where one is none, does not fit the tree's families, or
    would change nothing.
    """
    TASKS[choices.task].check(choices.model)
    if choices.task == "spatial" and choices.protocol != "intra":
        raise ChoiceError("--task spatial has the protocol intra alone; try --model localizer:left-out")
    if choices.model == f"{LOCALIZER}:left-out" and not choices.synthetic:
        raise ChoiceError("--model localizer:left-out knows our own families' kinds alone: use --synthetic")
    if choices.pretrained and choices.model.rpartition(":")[2] in names.WITHOUT_WEIGHTS:
        raise ChoiceError(f"--model {choices.model} has no published weights: leave --pretrained out")
    offers = {"input": Input, "augmentation": Augmentation, "crops": Crops, "protocol": Protocol}
    for name, offered in offers.items():
        _one_of(name, getattr(choices, name), get_args(offered))
    # Two, three, and each family by itself.
    _one_of("classes", choices.classes, (2, 3, 1 + len(kinds)))
    usual = Choices.usual(choices.task, choices.model, synthetic=choices.synthetic)
    for name in _without_effect(choices):
        if getattr(choices, name) != getattr(usual, name):
            task, option = f"--task {choices.task} with --model {choices.model}", name.replace("_", "-")
            raise ChoiceError(f"--{option} changes nothing of {task}: leave it out")
    layout, _, folder = (choices.test_on or "").partition("=")
    if choices.test_on is not None:
        _one_of("test-on", layout, tuple(LAYOUTS))
        if choices.classes != 2 or choices.protocol != "intra":
            raise ChoiceError("--test-on tells real from forged: choose --classes 2 and --protocol intra")
        if not Path(folder).is_dir():
            raise ChoiceError(f"--test-on {layout}={folder}: {folder or 'nothing'} is no folder")
    if choices.protocol == "cross" and choices.classes != 2:
        raise ChoiceError("the protocol cross tells real from forged: choose --classes 2")
    for group in choices.train_on:
        _one_of("train-on", group, (*KINDS, *kinds))
    if len(choices.train_on) > 1 and choices.protocol == "intra":
        raise ChoiceError("several groups are trained on one after the other with --protocol cross")
    return choices


def _without_effect(choices: Choices) -> tuple[str, ...]:
    """Return the choices that are another task's or another network's."""
    if choices.model.partition(":")[2] in EXTRACTORS:
        return (*_OF_CLASSIFIERS, "shuffled", "test_on", "protocol", "train_on")
    if choices.task == "temporal":
        return (*_OF_CLASSIFIERS, *_OF_NETWORKS, "input", "steps", "shuffled", "test_on")
    if choices.task == "spatial":
        own = choices.model.partition(":")[0] == LOCALIZER
        return ("train_on", "shuffled", "test_on", *_OF_CLASSIFIERS, *(_OF_NETWORKS if own else ()))
    if choices.model == FORENSIC:
        return ("shuffled", "crops", "input", "steps", *_OF_NETWORKS)
    idle = ("shuffled", "crops") if choices.input == "face" else ("shuffled",)
    return idle if choices.task == "image" else ()


def groups_named(text: str | None, kinds: Kinds) -> tuple[str, ...]:
    """Return the groups of an option: NAME,NAME,… or "each" for every family."""
    if text is None:
        return ()
    return tuple(kinds) if text == "each" else tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _one_of(name: str, value: object, offered: Sequence[object]) -> None:
    if value not in offered:
        raise ChoiceError(
            f"--{name} {value or repr(value)} is none here: choose of {', '.join(map(str, offered))}"
        )
