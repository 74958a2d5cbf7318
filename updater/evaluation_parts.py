"""Parts of an evaluation: points of a curve, names that changed, and what a release was made of."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class RocPoint(NamedTuple):
    """A point of the ROC curve of rejection: shares whose unknown score is high enough, in 0..1."""

    familiar: float
    """of the items of the familiar classes (false positives)"""
    forged: float
    """of the pseudo-forgeries (true positives)"""


class Flip(BaseModel):
    """A held-back item that one of two releases named right."""

    model_config = ConfigDict(frozen=True)

    exemplar: str = Field(description="its id")
    family: str = Field(description="what it is")
    before: str = Field(description="what the live release called it: real, unknown, or a family")
    after: str = Field(description="what the candidate calls it")


class Flips(BaseModel):
    """How the names of held-back items changed from the live release, on the classes that both know."""

    model_config = ConfigDict(frozen=True)

    items: int = Field(description="held-back items of those classes")
    lost: tuple[Flip, ...] = Field(
        description="negative flips: the live release named them right, the candidate does not; worst first"
    )
    won: int = Field(description="items that the candidate names right, and the live release did not")


class MadeOf(BaseModel):
    """How many items a release was made of, as its training snapshot has them one by one."""

    model_config = ConfigDict(frozen=True)

    labels: Mapping[int, Mapping[str, int]] = Field(description="by the label's number, by split")
    sources: Mapping[str, Mapping[str, int]] = Field(description="by source, by split")
