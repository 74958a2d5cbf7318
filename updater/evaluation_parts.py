"""Parts of an evaluation: points of a curve, names that changed, and a release's exemplars. Light."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from memory.records import Split

Measure = Literal["aa", "af", "power", "robustness", "unseen_auc", "reals_unknown", "reals_fake"]
"""aa: average accuracy, the mean over the release's classes of the share that got its very name. af: average
forgetting, the mean over the families that the release before knew of the change of that share; negative
means forgotten (as in updater.measures). power: the share of a family never seen that would not be called
real, as each known family left out once has it. robustness: the accuracy under distortions, where saying the
same of everything has 0.5. unseen_auc: chance that a pseudo-forgery of held-back media seems less familiar
than an item of a familiar class. reals_unknown, reals_fake: shares of the held-back reals."""


class RocPoint(NamedTuple):
    """A point of the ROC curve of rejection: shares whose unknown score is high enough, in 0..1."""

    familiar: float
    """of the items of the familiar classes (false positives)"""
    forged: float
    """of the pseudo-forgeries (true positives)"""


class Flip(BaseModel, frozen=True):
    """A held-back item that one of two releases named right."""

    exemplar: str = Field(description="its id")
    family: str = Field(description="what it is")
    before: str = Field(description="the live release's label: real, unknown, or a family")
    after: str = Field(description="the candidate's label")


class Flips(BaseModel, frozen=True):
    """How the names of held-back items changed from the live release, on the classes that both know."""

    items: int = Field(description="held-back items of those classes")
    lost: tuple[Flip, ...] = Field(
        description="negative flips: the live release named them right, the candidate does not; worst first"
    )
    won: int = Field(description="items that the candidate names right, and the live release did not")


class MadeOf(BaseModel, frozen=True):
    """How many items a release was made of, as its training snapshot has them one by one."""

    labels: Mapping[int, Mapping[str, int]] = Field(description="by the label's number, by split")
    sources: Mapping[str, Mapping[str, int]] = Field(description="by source, by split")
    declared: Mapping[str, int] = Field({}, description="by split, labelled by their files' declarations")


class SnapshotRow(BaseModel, frozen=True):
    """One exemplar that a release was trained, calibrated or, in the split test, only measured on."""

    exemplar: str = Field(description="its id")
    media_digest: str = Field(description="SHA-256 of its media's bytes, hexadecimal")
    family: str = Field(description="its label: real or a family")
    split: Split
    group: str
    source: str
    label: int = Field(description="number of the label that it bore, in the memory's history")
    declared: bool = Field(False, description="its file's declaration gave that label, and no person")
