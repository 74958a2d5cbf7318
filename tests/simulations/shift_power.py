"""How many items of a shifted source raise an alarm, by simulation, for how far single items shift."""

import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
from drift_power import DriftPower, FalseDrifts
from numpy.typing import NDArray
from scipy.special import ndtri
from shift_bursts import FalseAlarms

from memory.settings import MemorySettings
from memory.shift.alarms import MAX_REFERENCE
from memory.shift.shift_test import ShiftTest, share_of_budget
from updater.progress import Progress

AUCS = (0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90)

SHARES = (1.0, 0.3, 0.1)
"""Of a source's items, how many are forged once it has shifted."""

SIGMAS = 4.0
"""What a test of one group of known size and beginning is asked for, with which ours is compared."""

_MOST = 3000


@dataclass(frozen=True)
class Power:
    """Items until the alarm, of which a share is forged; item_auc: of telling these from the source's own.

    closed_form: (SIGMAS / (share * d'))^2 with d' = sqrt(2) * ndtri(item_auc), of normal scores. low, median
    and high are the 10 %, 50 % and 90 % quantiles over the streams; one without an alarm within _MOST items
    counts as infinitely many.
    """

    share: float
    item_auc: float
    closed_form: float
    low: float
    median: float
    high: float


def measure(
    before: int, streams: int, seed: int, shares: Sequence[float], aucs: Sequence[float], progress: Progress
) -> Iterator[Power]:
    """Yield the power at each share and AUC for sources that have sent `before` items of their own.

    Scores are normal and independent, and so is which items are forged.
    Each test is the first of its release, and all its settings are the defaults.
    """
    rng, settings = np.random.default_rng(seed), MemorySettings()
    tests = []
    for stream in range(streams):
        test = ShiftTest(int(rng.integers(2**62)), settings.min_reference, MAX_REFERENCE)
        for score in rng.normal(size=before):
            test.observe(float(score))
        tests.append(test)
        progress("the sources' own items", stream + 1, streams)
    limit = -math.log(settings.max_false_alarms * share_of_budget(1))
    for share, auc in product(shares, aucs):
        shift = math.sqrt(2) * float(ndtri(auc))
        taken = []
        for stream, test in enumerate(tests):
            scores = rng.normal(size=_MOST) + shift * (rng.random(_MOST) < share)
            taken.append(_items_needed(copy.deepcopy(test), scores, limit))
            progress(f"{share:.0%} forged, item AUC {auc:.2f}", stream + 1, streams)
        low, median, high = np.quantile(taken, (0.1, 0.5, 0.9), method="inverted_cdf")
        closed_form = (SIGMAS / (share * shift)) ** 2
        yield Power(share, auc, closed_form, float(low), float(median), float(high))


def _items_needed(test: ShiftTest, scores: NDArray[np.float64], limit: float) -> float:
    for taken, score in enumerate(scores, start=1):
        test.observe(float(score))
        if test.log_e >= limit:
            return taken
    return math.inf


def bar(items: float) -> str:
    """Return a bar of one character for each five items, 60 at most."""
    return "█" * max(1, round(min(items, 300) / 5))


def shift_json(
    power: Sequence[Power],
    bursts: Sequence[FalseAlarms],
    drift_power: Sequence[DriftPower],
    false_drifts: Sequence[FalseDrifts],
    before: int,
    streams: int,
    seed: int,
) -> str:
    """Return what was measured as JSON; items are null where that quantile of the streams raised no alarm."""
    facts = {
        "before": before,
        "streams": streams,
        "seed": seed,
        "power": [_finite(row) for row in power],
        "false_alarms": [_finite(row) for row in bursts],
        "drift_power": [_finite(row) for row in drift_power],
        "false_drift_alarms": [_finite(row) for row in false_drifts],
    }
    return json.dumps(facts, indent=2, allow_nan=False) + "\n"


def _finite(row: Power | FalseAlarms | DriftPower | FalseDrifts) -> dict[str, float | None]:
    return {name: None if value == math.inf else value for name, value in asdict(row).items()}
