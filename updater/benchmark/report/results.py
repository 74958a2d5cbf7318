"""Figures of a network on a stream: accuracy, forgetting and rejection.

AA, AF, AA-M, mAP and the closed-set accuracy are in points, 0..100, as the papers print them; shares, AUCs
and AP of rejection are fractions, 0..1. None where a figure was not measured or has no value.

Scores follow one sign: higher means more likely to be of the positive class, and every function says which
class that is. B is the matrix of CDDB (Li et al. 2023): B[i, j] is the accuracy on task i after training on
task j, in points, meaningful for i <= j. The average accuracy (AA) is the mean of its last column; of the 32
rows of CDDB's table 3, ten print another AA than the mean of their tasks.

Intervals are percentiles over images drawn again (Efron 1979, "Bootstrap methods: another look at the
jackknife"). Every network that is measured on a stream is measured on the same draws, so that draw number b
of one seed and of another may be averaged. The networks are given: other seeds move a figure further.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, BeforeValidator
from sklearn.metrics import average_precision_score

from updater.measures import auroc, weighted_quantile


def _no_nan(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# JSON has no nan; a figure without a value is null there and None here.
Number = Annotated[float | None, BeforeValidator(_no_nan)]


class Unseen(BaseModel, frozen=True, extra="forbid"):
    """How well media of classes that were never trained on are rejected; higher scores are less familiar."""

    # AUC of unknown (positive) against known.
    auc: Number = None
    # Share of unknowns taken for known where 95 % of the knowns are (positive: known).
    fpr95: Number = None
    # Share of unknowns caught, threshold picked on the test: 5 % of the knowns above it.
    caught_at_5: Number = None
    # Share of unknowns caught at the deployed threshold.
    caught_deployed: Number = None
    # Average precision of unknown (positive) against known.
    ap: Number = None
    # AUC of the same by the energy of a plain classifier alone.
    energy_auc: Number = None
    # AUC of the same by the energy alone of the very network, which is one term of its gate.
    own_energy_auc: Number = None
    # AUC of the unknown sources' reals (positive) against known: a new source, no forgery.
    control_auc: Number = None


class WithinSource(BaseModel, frozen=True, extra="forbid"):
    """How well forgeries of a family never trained on are told from held-back reals of their own source.

    The source's reals are trained on. What is new is the forgery alone, and not where it comes from.
    """

    # AUC of the unseen fakes (positive) against their source's reals.
    auc: Number = None
    # Share of them caught, threshold picked on the test: 5 % of these reals above it.
    caught_at_5: Number = None
    # As in `Unseen`.
    own_energy_auc: Number = None


class PowerShare(BaseModel, frozen=True, extra="forbid"):
    """Which share of a family's fakes would not be called real, had no release seen the family."""

    # Mean over the families left out, at the deployed thresholds.
    share: Number = None
    # Ends of its 95 % interval over families and images.
    low: Number = None
    high: Number = None


class Figures(BaseModel, frozen=True, extra="forbid"):
    """The figures of one run, or of one step of it; AA, AF, AA-M, mAP and the closed set in points."""

    # Average accuracy, and that of joint training on all tasks at once.
    aa: Number = None
    joint_aa: Number = None
    # Accuracy on all test items so far, and its mean over the steps: the average incremental accuracy.
    seen_accuracy: Number = None
    incremental_accuracy: Number = None
    # Average forgetting by CDDB's code and by its printed formula; negative: forgotten.
    af: Number = None
    af_paper: Number = None
    # Average recognition accuracy: the very class.
    aa_m: Number = None
    # Mean over tasks of the average precision of fakes by CDDB's p_F: the largest fake output over the sum of
    # the largest fake and the largest real one.
    map: Number = None
    # The same by the sum of all fake outputs, which a release's fake probability is.
    map_mass: Number = None
    # Mean over tasks of the AUC of their fakes (positive) against their reals.
    real_fake_auc: Number = None
    # Share of known test items given their very class by the classifier alone.
    closed_set_accuracy: Number = None
    # Shares of known reals called unknown and called fake, deployed thresholds.
    reals_unknown: Number = None
    reals_fake: Number = None
    # Rejection of what was never trained on.
    unseen: Unseen = Unseen()
    # The same where the reals of the unseen forgeries' source are trained on.
    source_known: Unseen = Unseen()
    # The unseen forgeries against the reals of their own source alone.
    within_source: WithinSource = WithinSource()
    # AUC where the source is known of a score that only says how near the source is that has no known fakes:
    # what rejection would reach without looking at forgery.
    lone_source_auc: Number = None
    # Of a family never seen, the share not called real.
    power: PowerShare = PowerShare()
    # Of the outlier sets each on its own, the mean over all, over the near ones and over the far (OpenCIL).
    each_set: Unseen = Unseen()
    near: Unseen = Unseen()
    far: Unseen = Unseen()
    # Seconds to train an update (mean of all but the first) over those of joint training.
    update_cost: Number = None

    @classmethod
    def of(cls, flat: Mapping[str, float | None]) -> Self:
        """Return the figures of these names, such as "aa" and "unseen.auc"; those that lack are None."""
        nested: dict[str, dict[str, float | None]] = {}
        for name, value in flat.items():
            group, _, own = name.rpartition(".")
            nested.setdefault(group, {})[own] = value
        return cls.model_validate(nested.pop("", {}) | nested)

    def flat(self) -> dict[str, float | None]:
        """Return all figures by such names."""
        figures: dict[str, float | None] = {}
        for name, value in self.model_dump().items():
            inner = {f"{name}.{own}": of for own, of in value.items()} if isinstance(value, dict) else None
            figures |= {name: value} if inner is None else inner
        return figures


class Result(BaseModel, frozen=True, extra="forbid"):
    """The figures after one task was learnt."""

    task: str
    figures: Figures
    # Wall time of each part of the step.
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class RejectionScores:
    """The scores that a curve or a histogram is drawn of; each 1-D, float32, higher = less familiar."""

    known: NDArray[np.float32]
    """of test items of the known classes, by the first score"""
    unknown: NDArray[np.float32]
    """of forgeries (or outliers) of classes never trained on, by the first score"""
    control: NDArray[np.float32]
    """of the unknown sources' own reals, by the first score; may be empty"""
    known_energy: NDArray[np.float32]
    """of the same items as known, by the classifier's energy"""
    unknown_energy: NDArray[np.float32]
    """of the same items as unknown, by the classifier's energy"""
    known_own_energy: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """of the same items as known, by the energy of the network that is measured; empty in older runs"""
    unknown_own_energy: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    control_own_energy: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


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
        own_energy_auc=auroc(scores.unknown_own_energy, scores.known_own_energy),
        control_auc=auroc(scores.control, known),
    )


def measure_within(scores: RejectionScores) -> WithinSource:
    """Return the figures within a source: `control` holds reals of the unknowns' source, held back."""
    return WithinSource(
        auc=auroc(scores.unknown, scores.control),
        caught_at_5=caught_at(scores.unknown, scores.control),
        own_energy_auc=auroc(scores.unknown_own_energy, scores.control_own_energy),
    )


def af(matrix: ArrayLike) -> float:
    """Return the average forgetting as CDDB's published code counts it; negative means forgotten.

    The mean over i < n-1 (from 0) of B[i, n-1] - B[i, i]. In B's unit; nan for a single task.
    """
    b = _square(matrix)
    if len(b) < 2:
        return math.nan
    return float((b[:-1, -1] - b.diagonal()[:-1]).mean())


def af_paper(matrix: ArrayLike) -> float:
    """Return the average forgetting as CDDB's paper prints it; negative means forgotten.

    The mean over i of BWT_i = 1/(n-i-1) * sum over j in i+1..n of (B[i, j] - B[i, i]), i and j from 1.
    Where i = n-1 the printed divisor is zero: that task is left out of the mean, so there are n-2
    terms. In B's unit; nan for fewer than three tasks.
    """
    b = _square(matrix)
    n = len(b)
    if n < 3:
        return math.nan
    return float(np.mean([(b[i - 1, i:] - b[i - 1, i - 1]).sum() / (n - i - 1) for i in range(1, n - 1)]))


def aa_m(predicted: Sequence[ArrayLike], targets: Sequence[ArrayLike]) -> float:
    """Return the average recognition accuracy AA-M of CDDB (section 3.3), in points, 0..100.

    predicted, targets: for each task the classes, 1-D and of one length, that its test items were called
    and are, after the last task. The mean over tasks of the share called by their very class, so that a
    fake named as another source's fake is wrong here and right in `aa`. nan for a task of no items.
    """
    shares = [
        float(np.mean(np.asarray(called) == np.asarray(is_))) if np.size(is_) else math.nan
        for called, is_ in zip(predicted, targets, strict=True)
    ]
    return 100 * float(np.mean(shares))


def mean_ap(fakes: Sequence[ArrayLike], reals: Sequence[ArrayLike]) -> float:
    """Return CDDB's mAP (section 3.3), in points, 0..100: the mean over tasks of the AP of their fakes.

    fakes, reals: for each task the scores, higher = more likely fake, of its fakes (the positive class)
    and of its reals. nan where a task has none of either.
    """
    pairs = zip(fakes, reals, strict=True)
    return 100 * float(np.mean([average_precision(fake, real) for fake, real in pairs]))


def fpr95(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return the share of negatives at or above the highest threshold that keeps 95 % of the positives.

    The positive class is the one that the caller names: the same scores give another figure when it
    is the unknown media than when it is the known ones with the sign turned. nan where one is empty.
    """
    # With the signs turned these are the negatives that are not caught.
    return 1 - caught_at(np.negative(negative), np.negative(positive))


def average_precision(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return the mean over the positives of the precision at the threshold that just catches each.

    So it is the area below the stepped curve of precision over recall. The positive class is the one
    that the caller names, and at chance it is the positives' share. nan where one is empty.
    """
    if not np.size(positive) or not np.size(negative):
        return math.nan
    is_positive = np.arange(np.size(positive) + np.size(negative)) < np.size(positive)
    return float(average_precision_score(is_positive, np.concatenate([positive, negative])))


def caught_at(unknown: ArrayLike, known: ArrayLike, false_share: float = 0.05) -> float:
    """Return the share of the unknown that is above the lowest threshold that turns away few known.

    That is the lowest with at most `false_share` of the known scores above it; it is picked on these
    scores, so the deployed one will not do as well. nan where one is empty.
    """
    turned_away, kept = np.asarray(unknown, np.float64), np.asarray(known, np.float64)
    if not len(turned_away) or not len(kept):
        return math.nan
    threshold = weighted_quantile(kept, np.ones(len(kept)), 1 - false_share)
    return float((turned_away > threshold).mean())


def _square(matrix: ArrayLike) -> NDArray[np.float64]:
    b = np.asarray(matrix, np.float64)
    if b.ndim != 2 or b.shape[0] != b.shape[1] or not len(b):
        raise ValueError(f"the matrix of accuracies must be square, not {b.shape}")
    return b


ROUNDS = 1000

Counts = NDArray[np.uint16]
"""[R, n]: how often each of n images is in each of R draws"""
Drawn = NDArray[np.float64]
"""[R]: a figure of each draw, nan where it has none"""


class Resamples:
    """Draws of a stream's images with replacement, by whole groups, each stratum to its own number of them.

    A group that lies in several strata counts for the first.
    """

    def __init__(
        self, groups: Sequence[str], strata: Sequence[str], *, rounds: int = ROUNDS, seed: int = 0
    ) -> None:
        """groups, strata: of each image, in an order that is the same for every network."""
        first: dict[str, str] = {}
        for group, stratum in zip(groups, strata, strict=True):
            first.setdefault(group, stratum)
        self._columns = {group: column for column, group in enumerate(first)}
        self._counts = np.zeros((rounds, len(first)), np.uint16)
        rng, of = np.random.default_rng(seed), np.array(list(first.values()), str)
        for stratum in dict.fromkeys(first.values()):
            own = np.flatnonzero(of == stratum)
            self._counts[:, own] = rng.multinomial(len(own), np.full(len(own), 1 / len(own)), rounds)

    def of(self, groups: Sequence[str]) -> Counts:
        """Return how often images of these groups are drawn. Raises KeyError for an unknown group."""
        return self._counts[:, [self._columns[group] for group in groups]]


def shares(holds: ArrayLike, drawn: Counts) -> Drawn:
    """Return the share of the images drawn for which something holds (bool [n])."""
    return _ratios(drawn @ np.asarray(holds, np.float64), drawn.sum(1))


def aurocs(positive: ArrayLike, negative: ArrayLike, of_positive: Counts, of_negative: Counts) -> Drawn:
    """Return `measures.auroc` of each draw of two samples of scores, 1-D, with the draws of each."""
    higher, order = np.asarray(positive, np.float64), np.argsort(negative)
    lower = np.asarray(negative, np.float64)[order]
    below, up_to = (np.searchsorted(lower, higher, side) for side in ("left", "right"))
    reached = _running(of_negative[:, order])
    won = (of_positive * (reached[:, below] + reached[:, up_to])).sum(1)
    return _ratios(won, 2 * of_positive.sum(1, dtype=np.int64) * reached[:, -1])


def caught_shares(
    unknown: ArrayLike, known: ArrayLike, of_unknown: Counts, of_known: Counts, false_share: float = 0.05
) -> Drawn:
    """Return `measures.caught_at` of each draw, the threshold picked anew on the drawn images."""
    order, unknown_order = np.argsort(known), np.argsort(unknown)
    kept, turned_away = np.asarray(known)[order], np.asarray(unknown)[unknown_order]
    if not len(kept):
        return np.full(len(of_known), math.nan)
    reached, not_caught = _running(of_known[:, order]), _running(of_unknown[:, unknown_order])
    wanted = (1 - false_share - 1e-12) * reached[:, -1]
    places = (reached[:, 1:] < wanted[:, None]).sum(1).clip(max=len(kept) - 1)
    left = not_caught[np.arange(len(places)), np.searchsorted(turned_away, kept[places], "right")]
    shares = 1 - _ratios(left, not_caught[:, -1])
    shares[reached[:, -1] == 0] = math.nan
    return shares


def interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float] | None:
    """Return the percentile interval of a figure's draws, those without a value left out; None of none."""
    present = np.asarray(values, np.float64)
    present = present[np.isfinite(present)]
    if not len(present):
        return None
    low, high = np.quantile(present, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _running(counts: Counts) -> NDArray[np.int64]:
    """Return how many are drawn of the first 0..n images, int64 [R, n + 1]."""
    return np.pad(np.cumsum(counts, 1, dtype=np.int64), ((0, 0), (1, 0)))


def _ratios(part: NDArray[np.generic], whole: NDArray[np.generic]) -> Drawn:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.true_divide(part, whole), np.float64)
