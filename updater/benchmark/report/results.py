"""What one run of a benchmark measured, and what to repeat it by.

AA, AF, AA-M, mAP and the closed-set accuracy are in points, 0..100, as the papers print them; shares, AUCs
and AP of rejection are fractions, 0..1. None where a figure was not measured or has no value.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from updater.measures import auroc, average_precision, caught_at, fpr95


def _no_nan(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# JSON has no nan; a figure without a value is null there and None here.
Number = Annotated[float | None, BeforeValidator(_no_nan)]


class Unseen(BaseModel):
    """How well media of classes that were never trained on are rejected; higher scores are less familiar."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    auc: Number = Field(None, description="AUC of unknown (positive) against known")
    fpr95: Number = Field(
        None,
        description="share of unknowns taken for known where 95 % of the knowns are (positive: known)",
    )
    caught_at_5: Number = Field(
        None, description="share of unknowns caught, threshold picked on the test: 5 % of the knowns above it"
    )
    caught_deployed: Number = Field(None, description="share of unknowns caught at the deployed threshold")
    ap: Number = Field(None, description="average precision of unknown (positive) against known")
    energy_auc: Number = Field(None, description="AUC of the same by the energy of a plain classifier alone")
    control_auc: Number = Field(
        None,
        description="AUC of the unknown sources' reals (positive) against known: a new source, no forgery",
    )


class WithinSource(BaseModel):
    """How well forgeries of a family never trained on are told from held-back reals of their own source.

    The source's reals are trained on. What is new is the forgery alone, and not where it comes from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    auc: Number = Field(None, description="AUC of the unseen fakes (positive) against their source's reals")
    caught_at_5: Number = Field(
        None, description="share of them caught, threshold picked on the test: 5 % of these reals above it"
    )


class Power(BaseModel):
    """Which share of a family's fakes would not be called real, had no release seen the family."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: Number = Field(None, description="mean over the families left out, at the deployed thresholds")
    low: Number = Field(None, description="lower end of its 95 % interval over families and images")
    high: Number = Field(None, description="upper end of it")


class Figures(BaseModel):
    """The figures of one run, or of one step of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    aa: Number = Field(None, description="average accuracy, points")
    joint_aa: Number = Field(None, description="the same of joint training on all tasks at once, points")
    af: Number = Field(None, description="average forgetting by CDDB's code, points; negative: forgotten")
    af_paper: Number = Field(None, description="average forgetting by CDDB's printed formula, points")
    aa_m: Number = Field(None, description="average recognition accuracy (the very class), points")
    map: Number = Field(
        None,
        description="mean over tasks of the average precision of fakes, points, by CDDB's p_F: the largest"
        " fake output over the sum of the largest fake and the largest real one",
    )
    map_mass: Number = Field(
        None, description="the same by the sum of all fake outputs, which a release's fake probability is"
    )
    real_fake_auc: Number = Field(
        None, description="mean over tasks of the AUC of their fakes (positive) against their reals"
    )
    closed_set_accuracy: Number = Field(
        None, description="share of known test items given their very class by the classifier alone, points"
    )
    reals_unknown: Number = Field(None, description="share of known reals called unknown, deployed threshold")
    reals_fake: Number = Field(None, description="share of known reals called fake, deployed threshold")
    unseen: Unseen = Field(Unseen(), description="rejection of what was never trained on")
    source_known: Unseen = Field(
        Unseen(), description="the same where the reals of the unseen forgeries' source are trained on"
    )
    within_source: WithinSource = Field(
        WithinSource(), description="the unseen forgeries against the reals of their own source alone"
    )
    lone_source_auc: Number = Field(
        None,
        description="AUC where the source is known of a score that only says how near the source is that has"
        " no known fakes: what rejection would reach without looking at forgery",
    )
    power: Power = Field(Power(), description="of a family never seen, the share not called real")
    each_set: Unseen = Field(
        Unseen(), description="of the outlier sets each on its own, the mean over them (OpenCIL)"
    )
    near: Unseen = Field(Unseen(), description="the same over the near ones")
    far: Unseen = Field(Unseen(), description="the same over the far ones")
    update_cost: Number = Field(
        None,
        description="seconds to train an update (mean of all but the first) over those of joint training",
    )


class Step(BaseModel):
    """What was measured after one task was learnt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    figures: Figures
    seconds: Mapping[str, float] = Field(description="wall time of each part of the step, seconds")


class Run(BaseModel):
    """One run with one seed: what to repeat it by, and what came of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(1, ge=1, le=1)
    benchmark: str = Field(description="cddb, opencil or synthetic")
    stream: str
    stream_digest: str = Field(description="SHA-256 over the stream's names, classes and media")
    command: tuple[str, ...] = Field(description="the command line, word by word")
    options: Mapping[str, JsonValue] = Field(description="every option in effect, the defaults too")
    versions: Mapping[str, str] = Field(description="of Python and of the packages that the figures hang on")
    device: str
    seed: int
    tasks: tuple[str, ...]
    matrix: tuple[tuple[Number, ...], ...] = Field(
        description="B[i][j]: accuracy on task i after task j, points; null where i is not yet learnt"
    )
    steps: tuple[Step, ...]
    figures: Figures
    rejection: Mapping[str, Unseen] = Field(
        {}, description="by score, each family left out, or the mean over the steps"
    )
    rejection_source_known: Mapping[str, Unseen] = Field(
        {}, description="the same where the reals of the family's source are trained on"
    )
    rejection_within_source: Mapping[str, WithinSource] = Field(
        {}, description="the same, against the reals of the family's own source alone"
    )
    outlier_sets: Mapping[str, Mapping[str, Unseen]] = Field(
        {}, description="rejection by score, of each outlier set on its own, the mean over the steps"
    )
    resampled: Mapping[str, tuple[float, ...]] = Field(
        {},
        exclude=True,
        description="figures (such as unseen.auc) on images drawn again, with the same draws in every run of"
        " a stream; they have a file of their own",
    )

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        n = len(self.tasks)
        if len(self.matrix) != n or any(len(row) != n for row in self.matrix) or len(self.steps) != n:
            raise ValueError(f"{n} tasks need a matrix of {n} x {n} and {n} steps")
        return self

    def accuracies(self) -> NDArray[np.float64]:
        """Return B, float64 [n, n] in points, nan below the diagonal."""
        return np.array([[math.nan if b is None else b for b in row] for row in self.matrix], np.float64)

    def aa_over_time(self) -> list[float]:
        """Return the mean accuracy over the tasks learnt so far, in points, after each step."""
        b = self.accuracies()
        return [float(b[: j + 1, j].mean()) for j in range(len(b))]


@dataclass(frozen=True)
class RejectionScores:
    """The scores that a curve or a histogram is drawn of; each 1-D, float32, higher = less familiar."""

    known: NDArray[np.float32]
    """of test items of the known classes, by the gate"""
    unknown: NDArray[np.float32]
    """of forgeries (or outliers) of classes never trained on, by the gate"""
    control: NDArray[np.float32]
    """of the unknown sources' own reals, by the gate; may be empty"""
    known_energy: NDArray[np.float32]
    """of the same items as known, by the classifier's energy"""
    unknown_energy: NDArray[np.float32]
    """of the same items as unknown, by the classifier's energy"""


def measure_unseen(scores: RejectionScores, threshold: float | None = None) -> Unseen:
    """Return the figures of rejection; above `threshold`, the deployed one, a score is called unknown."""
    known, unknown = scores.known, scores.unknown
    caught = None if threshold is None or not len(unknown) else float((unknown > threshold).mean())
    return Unseen(
        auc=auroc(unknown, known),
        # The positive class of OpenCIL's FPR95 is the known one: with the sign turned it scores higher.
        fpr95=fpr95(-known, -unknown),
        caught_at_5=caught_at(unknown, known),
        caught_deployed=caught,
        ap=average_precision(unknown, known),
        energy_auc=auroc(scores.unknown_energy, scores.known_energy),
        control_auc=auroc(scores.control, known),
    )


def measure_within(scores: RejectionScores) -> WithinSource:
    """Return the figures within a source: `control` holds reals of the unknowns' source, held back."""
    return WithinSource(
        auc=auroc(scores.unknown, scores.control), caught_at_5=caught_at(scores.unknown, scores.control)
    )


def figure_of(figures: Figures, name: str) -> float | None:
    """Return a figure by its name, or by its group's and its own, such as "unseen.auc"."""
    group, _, own = name.rpartition(".")
    value: float | None = getattr(getattr(figures, group) if group else figures, own)
    return value
