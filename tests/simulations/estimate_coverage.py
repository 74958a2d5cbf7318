"""How often the two intervals of memory.estimate hold the share of verdicts that is right, by simulation.

A window is ITEMS verdicts that say real or one of two families. A healthy release's probabilities are
calibrated; an overconfident one's logits are 1.5 times as large as they should be. Under drift, a share of
what is called real in the second half is forged by an unseen family, which seems a little less familiar.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import binomtest

from memory.estimate.drawing import drawn
from memory.estimate.intervals import Residual, corrected, from_probabilities
from memory.estimate.records import Share
from memory.settings import MemorySettings
from memory.shift.alarms import MAX_REFERENCE
from memory.shift.shift_test import ShiftTest, share_of_budget
from updater.progress import Progress

Case = Literal["calibrated", "overconfident", "10 % forged", "30 % forged"]
By = Literal["probabilities", "audit"]
CASES: dict[Case, float] = {"calibrated": 0.0, "overconfident": 0.0, "10 % forged": 0.1, "30 % forged": 0.3}
"""With the share that is forged of the reals of the second half."""

ITEMS = 4000
LOOKS = 10
"""Times in a window that both intervals are looked at; the last is its end."""

_SHARES = (0.7, 0.2, 0.1)
_OVERCONFIDENT = 1.5
_SHIFT = 1.2
"""By how many deviations the unknown score of those is higher: an item AUC of 0.80."""


@dataclass(frozen=True)
class Coverage:
    """Of so many windows, in how many an interval held what is right at the end, and at every look.

    alarms: windows in which the shift test raised an alarm. low, high: 95 %, Clopper and Pearson.
    """

    case: Case
    of: str
    """all, or what was said"""
    by: By
    windows: int
    covered: int
    """at the end"""
    low: float
    high: float
    always: int
    """covered at every look"""
    half_width: float
    """mean, of the interval at the end"""
    alarms: int


@dataclass(frozen=True)
class _Window:
    said: NDArray[np.int64]
    probability: NDArray[np.float64]
    right: NDArray[np.bool_]
    unknown_score: NDArray[np.float64]


def measure(windows: int, audited: int, seed: int, progress: Progress) -> Iterator[Coverage]:
    """Yield the coverage for each of CASES; audited: items that are drawn of a window, on average."""
    rng = np.random.default_rng(seed)
    groups = {"all": None, "real": 0, "first family": 1, "second family": 2}
    chance = audited / ITEMS
    for case in CASES:
        widths = defaultdict[tuple[str, By], list[float]](list)
        held, always = Counter[tuple[str, By]](), Counter[tuple[str, By]]()
        alarms = 0
        for number in range(windows):
            window = _window(case, rng)
            key = rng.bytes(32)
            taken = np.array([drawn(key, f"media-0-{n}", chance) for n in range(ITEMS)])
            for of, called in groups.items():
                here = np.ones(ITEMS, bool) if called is None else window.said == called
                for by, covered, width in _looks(window, here, taken, chance):
                    held[of, by] += covered[-1]
                    always[of, by] += all(covered)
                    widths[of, by].append(width)
            alarms += _alarmed(window, rng)
            progress(f"{case} windows", number + 1, windows)
        for (of, by), found in widths.items():
            low, high = binomtest(held[of, by], windows).proportion_ci(method="exact")
            half = float(np.mean(found)) / 2
            yield Coverage(
                case, of, by, windows, held[of, by], float(low), float(high), always[of, by], half, alarms
            )


def _window(case: Case, rng: np.random.Generator) -> _Window:
    said = rng.choice(3, ITEMS, p=_SHARES)
    probability = rng.beta(9, 1, ITEMS)
    right, score = rng.random(ITEMS) < probability, rng.normal(size=ITEMS)
    if case == "overconfident":
        probability = expit(_OVERCONFIDENT * logit(np.clip(probability, 1e-9, 1 - 1e-9)))
    forged = (said == 0) & (rng.random(ITEMS) < CASES[case]) & (np.arange(ITEMS) >= ITEMS // 2)
    return _Window(said, probability, right & ~forged, score + _SHIFT * forged)


def _looks(
    window: _Window, here: NDArray[np.bool_], taken: NDArray[np.bool_], chance: float
) -> Iterator[tuple[By, list[bool], float]]:
    covered: dict[By, list[bool]] = {"probabilities": [], "audit": []}
    shares: dict[By, Share] = {}
    for until in np.linspace(0, ITEMS, LOOKS + 1, dtype=int)[1:]:
        p, right = window.probability[:until][here[:until]], window.right[:until][here[:until]]
        residuals = (right - p)[taken[:until][here[:until]]]
        audited = [Residual(float(r), float(r), chance) for r in residuals]
        shares["probabilities"] = from_probabilities(len(p), float(p.sum()), float((p * (1 - p)).sum()))
        shares["audit"] = corrected(len(p), float(p.sum()), audited, chance)
        for by, share in shares.items():
            covered[by].append(bool(share.low <= right.mean() <= share.high))
    for by, share in shares.items():
        yield by, covered[by], share.high - share.low


def _alarmed(window: _Window, rng: np.random.Generator) -> bool:
    settings = MemorySettings()
    test = ShiftTest(int(rng.integers(2**62)), settings.min_reference, MAX_REFERENCE)
    limit = -math.log(settings.max_false_alarms * share_of_budget(1))
    for score in window.unknown_score[window.said == 0]:
        test.observe(float(score))
        if test.log_e >= limit:
            return True
    return False
