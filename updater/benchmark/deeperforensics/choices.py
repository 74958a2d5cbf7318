"""What may be chosen of a run: its trainings, tests and model. Nothing here loads torch."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import JsonValue

from updater.benchmark.data.deeperforensics import FACEFORENSICS
from updater.benchmark.networks.names import DEEPERFORENSICS, check_video
from updater.data.layouts.entries import DataError

TESTED = ("std", "sing", "rand", "mix2", "mix3", "mix4")
"""Variants of the data set: undistorted, at level 5, at any level, and mixes of so many."""
_TRAINED = (*TESTED, *(f"level{level}" for level in range(1, 6)), *FACEFORENSICS)
FORENSIC = "forensic"
"""the product's own features and its head"""
FRAMES = "frames:"
"""before the name of a timm model, which is trained on the crops alone"""
MODELS = (FORENSIC, "frames", *DEEPERFORENSICS)


class RunChoiceError(DataError):
    """An unknown choice. One line: which, and the known ones."""


@dataclass(frozen=True)
class RunChoices:
    """Everything that a run follows from, its media and its seed aside.

    train: each trained on by itself, variants and methods joined by "+", as in std+mix3. pretrained,
    checkpoint: what the network begins with, published weights or those of a file, by its path and later by
    its SHA-256.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    model: str
    synthetic: bool
    pretrained: bool = False
    checkpoint: str | None = None

    @classmethod
    def from_names(cls, train: str, test: str, model: str, **more: Any) -> "RunChoices":
        """Return the choices that the options NAME,NAME,… say; more: the other fields.

        Raises RunChoiceError, and NetworkError of a model.
        """
        check_video(model, MODELS)
        choices = cls(_split_names(train), _split_names(test), model, **more)
        for option in ("pretrained", "checkpoint"):
            if model == FORENSIC and getattr(choices, option):
                raise RunChoiceError(f"--{option} changes nothing of --model {FORENSIC}: leave it out")
        offered = {"train": TESTED if choices.synthetic else _TRAINED, "test": TESTED}
        for option, names in (("train", choices.trained_variants), ("test", choices.test)):
            for name in names:
                if name not in offered[option]:
                    known = ", ".join(offered[option])
                    raise RunChoiceError(f"--{option} {name!r} is no variant: choose of {known}")
        return choices

    def as_record(self) -> dict[str, JsonValue]:
        return asdict(self) | {"train": list(self.train), "test": list(self.test)}

    @property
    def of_distortions(self) -> str:
        """The training variant where a model is tested under each distortion at each level."""
        return "std" if "std" in self.train else self.train[0]

    @property
    def trained_variants(self) -> Iterable[str]:
        return dict.fromkeys(variant for training in self.train for variant in variants_of(training))


def variants_of(train: str) -> tuple[str, ...]:
    """Return the variants that std+mix3 consists of."""
    return tuple(dict.fromkeys(train.split("+")))


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))
