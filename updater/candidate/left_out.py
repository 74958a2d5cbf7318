"""Sources left out of a candidate's items in turn, and the threshold of new ones: first sight."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from detector.release.manifest import FirstSight
from updater.candidate.calibrate import reals
from updater.candidate.gate_inputs import Part
from updater.data.training_data import LabelledCrops
from updater.experts.calibrate import ExpertsSay
from updater.measures import balanced_weights, weighted_quantile
from updater.training.discriminant import LEAST_SOURCES, choose_shrinkage, fake_odds, remainders
from updater.training.step import is_real
from updater.training.sums import Statistics, sums_of

KNOWN_REALS = 5
"""reals of a source among the training items, from which they are known"""


def sums_with(part: Part, foreign: Statistics | None) -> Statistics:
    """Return the sums of a part's items, with those of items that no memory holds."""
    own = sums_of(part.rows, part.items.families, part.items.sources)
    return own if foreign is None else own.plus(foreign)


def left_out_odds(
    train: Part, calibration: Part, foreign: Statistics | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each item's log odds of fake by discriminants without its source, float64 [n] of both parts.

    train, calibration: a candidate's items, with what its network says of them. foreign: sums of what no
    memory holds. Sources are left out in turn, with their sums. No number where a source cannot be left out.
    """
    total = sums_with(train, foreign)
    shrunk = choose_shrinkage(train.rows, train.items, total)
    both = np.full(len(train.items), np.nan), np.full(len(calibration.items), np.nan)
    for out, spread, means, real in remainders(train.rows, train.items, total):
        solved = spread.discriminants(means, real, *shrunk)
        gone = np.isin(np.array(calibration.items.sources), np.array(train.items.sources)[out])
        for part, some, odds in zip((train, calibration), (out, gone), both, strict=True):
            odds[some] = fake_odds(part.rows[some] @ solved.weight.T + solved.bias, real)
    return both


def first_sight(
    parts: Sequence[LabelledCrops],
    odds: Sequence[NDArray[np.float64]],
    live: FirstSight | None,
    lost: float,
    experts: ExpertsSay | None = None,
) -> FirstSight | None:
    """Return the threshold of sources that are new to a candidate; None where too few are known.

    parts: the items to train and to calibrate on. odds: of each, as `left_out_odds` returns them; experts add
    their vote. The share `lost` of reals lies above the threshold, each source weighing the same. live: what
    the live release has, which stays where too few sources are known here.
    """
    pairs = zip(parts[0].sources, parts[0].families, strict=True)
    counts = Counter(source for source, family in pairs if is_real(family) and source)
    known = {name for name, count in counts.items() if count >= KNOWN_REALS}
    known |= set() if live is None else set(live.sources)
    if len(counts) < LEAST_SOURCES:
        return live and live.model_copy(update={"sources": tuple(sorted(known))})
    votes = [0.0 if experts is None else experts.of(items).lean.numpy() for items in parts]
    totals = np.concatenate([own + vote for own, vote in zip(odds, votes, strict=True)])
    sources = np.concatenate([items.sources for items in parts])
    left = np.isfinite(totals) & np.concatenate([reals(items.families) for items in parts])
    if not left.any():
        return live
    threshold = weighted_quantile(expit(totals[left]), balanced_weights(sources[left]), 1 - lost)
    return FirstSight(fake_threshold=min(threshold, 1.0), sources=tuple(sorted(known)))
