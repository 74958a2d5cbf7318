"""How often verdicts without a drift raise an alarm of drift, and how soon others do, by simulation."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from shift_bursts import BURSTS, in_bursts

from memory.records import Statistic
from memory.settings import MemorySettings
from memory.shift.alarms import MAX_REFERENCE
from memory.shift.drift import STATISTICS, DriftTest
from memory.shift.shift_test import share_of_budget
from updater.progress import Progress

ITEMS = 20_000
SEEDS = 5

SHIFTS = (-1.0, -0.5, 0.5, 1.0, 2.0)
"""By how many standard deviations the one statistic drifts."""

NUMBERS = (1, 2, 200)
"""Of the test, among those of drift of its release: over all, of the first source and of the 199th."""

MOST = 3000


@dataclass(frozen=True)
class FalseDrifts:
    """How many of so many streams of items without a drift raised an alarm.

    low, high: 95 %, Clopper and Pearson. length, correlation: as items come in bursts. highest:
    ln of the evidence, of all streams and moments.
    """

    items: int
    length: int
    correlation: float
    alarms: int
    streams: int
    low: float
    high: float
    highest: float


@dataclass(frozen=True)
class DriftPower:
    """Items until the alarm, by the test's number: quantiles over the streams; inf: more than MOST.

    within_100: the share of streams that raise it within 100 items.
    """

    number: int
    shift: float
    low: float
    median: float
    high: float
    within_100: float


def false_drifts(streams: int, seed: int, progress: Progress) -> Iterator[FalseDrifts]:
    """Yield the false alarms of SEEDS long streams, then of `streams` short ones for each of BURSTS.

    Statistics are normal and independent of each other, each test is the first of its release.
    """
    rng = np.random.default_rng(seed)
    for items, (length, correlation), count in (
        (ITEMS, BURSTS[0], SEEDS),
        *((MOST, burst, streams) for burst in BURSTS),
    ):
        alarms, highest = 0, -math.inf
        for stream in range(count):
            values = np.stack([in_bursts(items, length, correlation, rng) for _ in STATISTICS], 1)
            taken, most = run(begin(rng), values, 1)
            alarms += taken < math.inf
            highest = max(highest, most)
            progress(f"no drift, {items} items in bursts of {length}", stream + 1, count)
        low, high = binomtest(alarms, count).proportion_ci(method="exact")
        yield FalseDrifts(items, length, correlation, alarms, count, float(low), float(high), highest)


def drift_power(before: int, streams: int, seed: int, progress: Progress) -> Iterator[DriftPower]:
    """Yield the power after `before` items; of each stream another one of the statistics drifts, in turn."""
    rng = np.random.default_rng(seed)
    tests = []
    for stream in range(streams):
        test = begin(rng)
        for values in rng.normal(size=(before, len(STATISTICS))):
            test.take(named(values))
        tests.append(test)
        progress("items before the drift", stream + 1, streams)
    for number, shift in product(NUMBERS, SHIFTS):
        taken = []
        for stream, test in enumerate(tests):
            values = rng.normal(size=(MOST, len(STATISTICS)))
            values[:, stream % len(STATISTICS)] += shift
            taken.append(run(copy.deepcopy(test), values, number)[0])
            progress(f"a drift by {shift:+.1f}, test {number}", stream + 1, streams)
        low, median, high = np.quantile(taken, (0.1, 0.5, 0.9), method="inverted_cdf")
        soon = float(np.mean(np.array(taken) <= 100))
        yield DriftPower(number, shift, float(low), float(median), float(high), soon)


def begin(rng: np.random.Generator) -> DriftTest:
    """Begin the tests of one source by their defaults."""
    first, second, third = (int(seed) for seed in rng.integers(2**62, size=len(STATISTICS)))
    return DriftTest.begin((first, second, third), MemorySettings().min_reference, MAX_REFERENCE)


def named(values: NDArray[np.float64]) -> dict[Statistic, float]:
    """Return an item's statistics, [STATISTICS], by name; without those that are NaN."""
    every = zip(STATISTICS, values, strict=True)
    return {name: float(value) for name, value in every if not math.isnan(value)}


def run(test: DriftTest, rows: NDArray[np.float64], number: int) -> tuple[float, float]:
    """Return after how many rows the alarm came, inf for never, and the highest evidence until then."""
    budget = MemorySettings().max_false_alarms * share_of_budget(2 * number)
    most = -math.inf
    for taken, values in enumerate(rows, start=1):
        test.take(named(values))
        most = max(most, *(one.log_e for one in test.tests.values()))
        if test.strongest_finding(budget) is not None:
            return taken, most
    return math.inf, most
