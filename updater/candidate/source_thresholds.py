"""Thresholds of single sources: a source with enough held-back reals is judged by its own. Pure.

One threshold for all sources is set by the oddest of them. Among ordinary reals it lets forgeries pass that
lie far outside of what their source sends (group-conditional conformal prediction: Vovk 2012, "Conditional
validity of inductive conformal predictors").
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from detector.release.manifest import GateParameters, SourceThresholds
from updater.candidate.outlook import SOURCE_GROUPS
from updater.candidate.thresholds import (
    LiveCalls,
    Targets,
    keeping_fake,
    keeping_known,
    quantile_of_reals,
)
from updater.measures import balanced_weights, weighted_quantile

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
    judged by, their surroundings included, float32 [n]. families, groups, sources: of each, str [n]; an empty
    source is not known, and has none. real: whether each is, bool [n]. live: what the live release says of
    them, which is kept for the source's own items. targets: of each source by itself.

    The rules are the pooled ones (`updater.candidate.thresholds`), on the source's items alone. Below 65
    groups the threshold is the largest score of its reals, as split-conformal prediction at 5 % has it with
    20 to 38: one more group exceeds it with a chance of 1 in groups + 1. So that one odd group does not
    open a source to every forgery, a threshold is at most one clipped score above the pooled one, and the
    odds of fake at most ten times the pooled ones.
    """
    return {
        str(source): _thresholds(
            pooled,
            unknown[mine],
            fake_probability[mine],
            families[mine],
            groups[mine],
            real[mine],
            live and live.take(mine),
            targets,
        )
        for source in np.unique(sources[real])
        if source
        for mine in [sources == source]
        if len(np.unique(groups[mine & real])) >= SOURCE_GROUPS
    }


def _thresholds(
    pooled: GateParameters,
    unknown: NDArray[np.float32],
    fake_probability: NDArray[np.float32],
    families: NDArray[np.str_],
    groups: NDArray[np.str_],
    real: NDArray[np.bool_],
    live: LiveCalls | None,
    targets: Targets,
) -> SourceThresholds:
    weights = balanced_weights(families, groups)
    above = max(
        quantile_of_reals(unknown, weights, groups, real, targets.reals_unknown, targets.confidence),
        weighted_quantile(unknown, weights, 1 - targets.classes_unknown),
    )
    share = targets.reals_fake
    fake = quantile_of_reals(fake_probability, weights, groups, real, share, targets.confidence)
    if live is not None and live.known.any():
        above = max(above, keeping_known(unknown, families, groups, live))
        fake = min(fake, keeping_fake(fake_probability, families, groups, real, live, reals=share))
    odds = _ODDS * pooled.fake_threshold
    most = odds / (odds + 1 - pooled.fake_threshold)
    return SourceThresholds(
        groups=len(np.unique(groups[real])),
        unknown_threshold=min(above, pooled.unknown_threshold + pooled.clip),
        fake_threshold=min(max(fake, 0.0), most),
    )


def said_of_sources(sources: Mapping[str, SourceThresholds]) -> str:
    """Which sources are judged by thresholds of their own, and what these rest on."""
    if not sources:
        return (
            "Every source is judged by the same thresholds: of none were 20 groups of reals held back for"
            " calibration."
        )
    own = ", ".join(f"{name} ({one.groups} groups of reals)" for name, one in sources.items())
    return (
        f"Judged by thresholds of their own: {own}. Every other source is judged by the pooled ones. With"
        " fewer than 65 groups a source's threshold is the largest score of its held-back reals."
    )
