"""How many streams of reals raise a false alarm where items come in bursts of like scores, by simulation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from memory.settings import MemorySettings
from memory.shift.alarms import MAX_REFERENCE
from memory.shift.shift_test import ShiftTest, share_of_budget
from updater.progress import Progress

BURSTS = ((1, 0.0), (2, 0.5), (6, 0.2), (6, 0.5), (12, 0.5), (20, 0.2), (20, 0.5))
"""Items of a burst, and the correlation of two of its scores."""

ITEMS = 3000


@dataclass(frozen=True)
class FalseAlarms:
    """How many of so many streams of ITEMS reals raised an alarm; low and high: 95 %, Clopper and Pearson."""

    length: int
    correlation: float
    alarms: int
    streams: int
    low: float
    high: float


def measure(streams: int, seed: int, progress: Progress) -> Iterator[FalseAlarms]:
    """Yield the false alarms for each of BURSTS. Each test is the first of its release."""
    rng, settings = np.random.default_rng(seed), MemorySettings()
    limit = -math.log(settings.max_false_alarms * share_of_budget(1))
    for length, correlation in BURSTS:
        alarms = 0
        for stream in range(streams):
            test = ShiftTest(int(rng.integers(2**62)), settings.min_reference, MAX_REFERENCE)
            alarms += raises(test, in_bursts(ITEMS, length, correlation, rng), limit)
            progress(f"reals in bursts of {length}", stream + 1, streams)
        low, high = binomtest(alarms, streams).proportion_ci(method="exact")
        yield FalseAlarms(length, correlation, alarms, streams, float(low), float(high))


def raises(test: ShiftTest, scores: NDArray[np.float64], limit: float) -> bool:
    """Say whether a test's evidence reaches its limit at any of these scores."""
    for score in scores:
        test.observe(float(score))
        if test.log_e >= limit:
            return True
    return False


def in_bursts(items: int, length: int, correlation: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return normal scores, [items], in bursts of a length, of which the first may have begun before."""
    of_burst = np.repeat(rng.normal(size=items // length + 2), length)[rng.integers(length) :][:items]
    return math.sqrt(correlation) * of_burst + math.sqrt(1 - correlation) * rng.normal(size=items)
