"""What may be chosen of a run: what is trained on, what is tested on, and the model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import JsonValue

from updater.benchmark.data.tasks import DataError
from updater.benchmark.deeperforensics.models import check_model

TESTED = ("std", "sing", "rand", "mix2", "mix3", "mix4")
"""Variants of the data set: undistorted, at level 5, at any level, and mixes of so many."""
HIDDEN = "hidden"
_TRAINED = (*TESTED, *(f"level{level}" for level in range(1, 6)))


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

    def described(self) -> dict[str, JsonValue]:
        """Return every choice by name, for the record."""
        return asdict(self) | {"train": list(self.train), "test": list(self.test)}

    @property
    def of_distortions(self) -> str:
        """What is trained on where a model is tested under each distortion at each level."""
        return "std" if "std" in self.train else self.train[0]


def checked(train: str, test: str, model: str, *, synthetic: bool) -> Choices:
    """Return the choices that the options NAME,NAME,… say. Raises ChoiceError and ModelError."""
    choices = Choices(_named(train), _named(test), model, synthetic)
    for one in choices.train:
        _each_of("train", variants_of(one), _TRAINED)
    _each_of("test", choices.test, TESTED)
    check_model(model)
    return choices


def variants_of(train: str) -> tuple[str, ...]:
    """Return the variants that std+mix3 consists of."""
    return tuple(dict.fromkeys(train.split("+")))


def _named(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _each_of(option: str, names: Sequence[str], offered: Sequence[str]) -> None:
    for name in names:
        if name not in offered:
            raise ChoiceError(f"--{option} {name!r} is no variant: choose of {', '.join(offered)}")
