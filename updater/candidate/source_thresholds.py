"""Thresholds of single sources: a source with enough held-back reals is judged by its own. Pure.

One threshold for all sources is set by the oddest of them. Among ordinary reals it lets forgeries pass that
lie far outside of what their source sends (group-conditional conformal prediction: Vovk 2012, "Conditional
validity of inductive conformal predictors").

Two thresholds that keep 95 % of the reals each would together turn a tenth of them away. So the unknown
threshold takes what the fake one has left of the twentieth that a source may lose.
"""

import numpy as np
from numpy.typing import NDArray

from detector.release.manifest import GateParameters, SourceThresholds
from updater.candidate.outlook import SOURCE_GROUPS
from updater.candidate.thresholds import LiveCalls, Targets, keeping_fake, keeping_known
from updater.measures import balanced_weights, conformal_bound, weighted_quantile

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
