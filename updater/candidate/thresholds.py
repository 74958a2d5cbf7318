"""From the scores of calibration items to the thresholds of a gate. Pure.

Classes weigh the same, and within a class so do groups; a group is one witness, however many items it has.

Each network's thresholds are found on its own, so those of two that judge nearly alike may lie apart: one
easy new class gives the old ones a larger part of what all classes may lose, and a few reals decide where
fake begins. What the old classes lose by that is forgotten, just as if the network had forgotten it. So an
update's thresholds are moved until the live release's calls of the same items are kept, as far as the reals
allow.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from detector.release.manifest import GateParameters, SourceThresholds
from updater.candidate.outlook import SOURCE_GROUPS
from updater.data.real_clips import LEAST_VIDEOS
from updater.measures import balanced_weights, conformal_bound, weighted_quantile

_POOLED = 0.25
"""what the shape that all classes share has to say of the reals' tail; the rest is the reals' own"""

_FULL = 16
"""groups of a source's reals from which it weighs as much as any other: how the reals of one source lie says
little of another's"""

_MORE_UNKNOWN = 0.02
"""by how much the share of unknown ones among items of known classes may grow with an update"""


@dataclass(frozen=True)
class Targets:
    """The targets of thresholds, as shares of known media that may be turned away."""

    reals_unknown: float = 0.046
    reals_fake: float = 0.04
    classes_unknown: float = 0.12
    """mean over the known classes"""
    confidence: float = 0.8
    """how sure a bound on reals is to hold for fresh ones, given how few were calibrated on"""


TARGETS = Targets()


@dataclass(frozen=True)
class LiveCalls:
    """The live release's calls of n calibration items at its own thresholds, bool [n] each."""

    known: NDArray[np.bool_]
    """whether it knows the item's class"""
    unknown: NDArray[np.bool_]
    fake: NDArray[np.bool_]
    """whether the fake probability is above its threshold, unknown or not"""

    def take(self, chosen: NDArray[np.bool_]) -> "LiveCalls":
        """Return its calls of these items, bool [n]."""
        return LiveCalls(self.known[chosen], self.unknown[chosen], self.fake[chosen])


def unknown_threshold(
    unknown: NDArray[np.float32],
    families: NDArray[np.str_],
    groups: NDArray[np.str_],
    sources: NDArray[np.str_],
    real: NDArray[np.bool_],
    targets: Targets = TARGETS,
) -> float:
    """Return the unknown score above which an item is unknown.

    unknown: float32 [n], of calibration items; families, groups, sources: of each, str [n]; real: whether it
    is, bool [n], some of them. Of the thresholds for the shares of reals and of classes, the higher is taken.
    Each source of reals weighs the same, or as its groups where it has few.

    A few dozen photographs say little about the last hundredths of reals, and one odd group moves that
    quantile. Far more is known about the shape of a tail, which all classes have in common: the scores in
    units of each class's own median and upper spread. So the threshold is a mean of the reals' quantile and
    of the one that this shape puts at the reals' median and spread.
    """
    weights = balanced_weights(families, groups)
    own = _quantile_of_reals(unknown, groups, sources, real, targets.reals_unknown, targets.confidence)
    # The shape has the witnesses of all classes.
    share = conservative_share(len(np.unique(groups)), targets.reals_unknown, targets.confidence)
    names, of = np.unique(families, return_inverse=True)
    medians, spreads = np.array(
        [_median_and_spread(unknown[of == k], weights[of == k]) for k in range(len(names))]
    ).T
    # Near-duplicates have no spread, and one other item among them would be infinitely far out.
    spreads = np.maximum(spreads, max(0.2 * float(np.median(spreads)), 1e-6))
    median, spread = _median_and_spread(unknown[real], _weights_of_reals(groups[real], sources[real]))
    shaped = median + spread * weighted_quantile((unknown - medians[of]) / spreads[of], weights, 1 - share)
    of_classes = weighted_quantile(unknown, weights, 1 - targets.classes_unknown)
    return max(_POOLED * shaped + (1 - _POOLED) * own, of_classes)


def video_unknown_threshold(
    unknown: NDArray[np.float32], groups: NDArray[np.str_], of_pictures: float, *, reals: float
) -> float | None:
    """Return the unknown score above which a video is unknown, at least that of pictures.

    unknown, groups: of real videos among the calibration items, float32 [n] and str [n]; each group has one
    say. One more real video of their kind is above it with a chance of at most `reals`, 0..1, where there are
    enough (`updater.measures.conformal_bound`). None where there are fewer than 20 groups, which say too
    little.
    """
    _, first = np.unique(groups, return_index=True)
    if len(first) < LEAST_VIDEOS:
        return None
    return max(of_pictures, conformal_bound(unknown[first], reals))


def fake_threshold(
    fake_probability: NDArray[np.float32],
    groups: NDArray[np.str_],
    sources: NDArray[np.str_],
    real: NDArray[np.bool_],
    targets: Targets = TARGETS,
) -> float:
    """Return the fake probability, 0..1, above which an item is fake. Arguments as of `unknown_threshold`."""
    shares = targets.reals_fake, targets.confidence
    return min(max(_quantile_of_reals(fake_probability, groups, sources, real, *shares), 0.0), 1.0)


def keeping_known(
    unknown: NDArray[np.float32], families: NDArray[np.str_], groups: NDArray[np.str_], live: LiveCalls
) -> float:
    """Return the least unknown score above which few enough items of the classes that are live are unknown.

    Few enough are as many as the live release calls unknown and 2 % more, on average over the classes.
    Arguments as of `unknown_threshold`.
    """
    weights = balanced_weights(families[live.known], groups[live.known])
    share = float(weights @ live.unknown[live.known]) + _MORE_UNKNOWN
    return weighted_quantile(unknown[live.known], weights, max(1 - share, 0.0))


def keeping_fake(
    fake_probability: NDArray[np.float32],
    families: NDArray[np.str_],
    groups: NDArray[np.str_],
    sources: NDArray[np.str_],
    real: NDArray[np.bool_],
    live: LiveCalls,
    reals: float,
) -> float:
    """Return the highest fake probability above which enough forgeries of live families are fake.

    Enough are as many as the live release calls so, on average over the families; but not more than a share
    `reals` of the calibration reals may be above it. 1 where no forgery of a live family is among them.
    Arguments as of `unknown_threshold`.
    """
    forged = live.known & ~real
    if not forged.any():
        return 1.0
    weights = balanced_weights(families[forged], groups[forged])
    share = float(weights @ live.fake[forged])
    kept = weighted_quantile(fake_probability[forged], weights, 1 - share)
    weights = _weights_of_reals(groups[real], sources[real])
    return max(kept, weighted_quantile(fake_probability[real], weights, 1 - reals))


def conservative_share(count: int, share: float, confidence: float) -> float:
    """Return which share of `count` calibration items may be above a threshold.

    So few that the true share is below `share` with at least this confidence (Clopper and Pearson
    1934); 0 where even none above would not say so.
    """
    above = 0
    while above + 1 <= count and betaincinv(above + 2, count - above - 1, confidence) <= share:
        above += 1
    return above / count


def _quantile_of_reals(
    values: NDArray[np.float32],
    groups: NDArray[np.str_],
    sources: NDArray[np.str_],
    real: NDArray[np.bool_],
    share: float,
    confidence: float,
) -> float:
    above = conservative_share(len(np.unique(groups[real])), share, confidence)
    return weighted_quantile(values[real], _weights_of_reals(groups[real], sources[real]), 1 - above)


def _weights_of_reals(groups: NDArray[np.str_], sources: NDArray[np.str_]) -> NDArray[np.float64]:
    counts = {source: len(np.unique(groups[sources == source])) for source in np.unique(sources)}
    weights = balanced_weights(sources, groups) * [min(counts[source], _FULL) for source in sources]
    return np.asarray(weights / weights.sum())


def _median_and_spread(values: NDArray[np.float32], weights: NDArray[np.float64]) -> tuple[float, float]:
    median = weighted_quantile(values, weights, 0.5)
    return median, weighted_quantile(values, weights, 0.84) - median


# Thresholds of single sources: one for all sources is set by the oddest of them. Among ordinary reals it lets
# forgeries pass that lie far outside of what their source sends (group-conditional conformal prediction: Vovk
# 2012, "Conditional validity of inductive conformal predictors"). Two thresholds that keep 95 % of the reals
# each would together turn a tenth of them away. So the unknown threshold takes what the fake one has left of
# the twentieth that a source may lose.

REALS_LOST = 0.05
"""of a source's fresh reals, at most so many are called unknown or fake"""
_ODDS = 10.0
"""A source's odds of fake at its threshold are at most so many times the pooled ones."""


def source_thresholds(
    pooled: GateParameters,
    unknown: NDArray[np.float32],
    fake_probability: NDArray[np.float32],
    families: NDArray[np.str_],
    groups: NDArray[np.str_],
    sources: NDArray[np.str_],
    real: NDArray[np.bool_],
    live: LiveCalls | None,
    targets: Targets,
) -> dict[str, SourceThresholds]:
    """Return the thresholds of each source with at least 20 groups of reals among n calibration items.

    pooled: the gate with the thresholds of all sources. unknown, fake_probability: as the items will be
    judged by, float32 [n]. families, groups, sources: of each, str [n]; an empty
    source is not known, and has none. real: whether each is, bool [n]. live: what the live release says of
    them, which is kept for the source's own items. targets: of the reals that are fake, and of the classes.

    The fake threshold is the pooled one, or higher where more of the source's reals are above that than
    targets allow. The unknown threshold is lowered as far as split-conformal prediction at 5 % allows: one
    more group of the source is unknown or fake with a chance of at most 5 %, where with 20 to 38 groups the
    largest decides. It is raised only to the reals' plain 95 % quantile, so that one odd group of twenty
    raises nothing; and by one clipped score at most, as the odds of fake are by a factor of ten.
    """
    own = {}
    for source in np.unique(sources[real]):
        mine = sources == source
        _, first = np.unique(groups[mine & real], return_index=True)
        if not source or len(first) < SOURCE_GROUPS:
            continue
        reals = [values[mine & real][first] for values in (unknown, fake_probability)]
        of, of_live = (unknown[mine], families[mine], groups[mine]), live and live.take(mine)
        odds = _ODDS * pooled.fake_threshold
        most = odds / (odds + 1 - pooled.fake_threshold)
        fake = max(pooled.fake_threshold, min(_exceeded_by(reals[1], targets.reals_fake), most))
        if of_live is not None and of_live.known.any():
            forged = fake_probability[mine], *of[1:], sources[mine], real[mine], of_live
            fake = min(fake, keeping_fake(*forged, targets.reals_fake))
        above = conformal_bound(np.where(reals[1] > fake, np.inf, reals[0]), REALS_LOST)
        if above > pooled.unknown_threshold:
            above = max(pooled.unknown_threshold, _exceeded_by(reals[0], REALS_LOST))
        above = max(above, weighted_quantile(of[0], balanced_weights(*of[1:]), 1 - targets.classes_unknown))
        if of_live is not None and of_live.known.any():
            above = max(above, keeping_known(*of, of_live))
        above = min(above, pooled.unknown_threshold + pooled.clip)
        own[str(source)] = SourceThresholds(groups=len(first), unknown_threshold=above, fake_threshold=fake)
    return own


def _exceeded_by(values: NDArray[np.float32], share: float) -> float:
    """Return the lowest of the values that at most this share of them exceed."""
    return float(np.sort(values)[::-1][int(share * len(values))])
