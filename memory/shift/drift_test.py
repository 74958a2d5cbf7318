"""Tests whether a release's verdicts on a source have drifted, in any of three statistics and either way.

Each statistic has a two-sided test of its own (`shift_test`), which is held to a third of the budget. So the
chance that any of the three raises a false alarm is at most the budget, however they depend on each other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from detector.records import Verdict
from memory.records import Statistic
from memory.shift.shift_test import ShiftTest, began

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

NEWEST = 200
"""Newest items that are remembered: the same media again is no new item, and a drift began among them."""


class DriftFinding(NamedTuple):
    """The statistic whose test has reached its limit. The fields are as `Drift` has them."""

    statistic: Statistic
    direction: Literal["higher", "lower"]
    items: int
    since: int
    log_e: float
    log_limit: float


@dataclass
class DriftTest:
    """The tests of one source, or of all together."""

    tests: dict[Statistic, ShiftTest]
    p_values: dict[Statistic, NDArray[np.float32]] = field(
        default_factory=lambda: {name: np.zeros(0, np.float32) for name in STATISTICS}
    )
    """[at most NEWEST] each, oldest first"""
    media: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """[at most NEWEST], hashes of the newest items' digests, oldest first"""

    @classmethod
    def begin(cls, seeds: tuple[int, int, int], gather: int, most: int) -> Self:
        """Begin tests that gather first; the arguments are `ShiftTest`'s, with a seed for each statistic."""
        made = zip(STATISTICS, seeds, strict=True)
        return cls({name: ShiftTest.two_sided(seed, gather, most) for name, seed in made})

    def observe(self, verdict: Verdict) -> None:
        """Take the next verdict in, unless it is on the very media of one of the newest, sent again."""
        # Of the text: a verdict that somebody forged may have anything there.
        media = np.frombuffer(blake2b(verdict.item.digest.encode(), digest_size=8).digest(), "<u8")
        if media in self.media:
            return
        self.media = np.append(self.media, media)[-NEWEST:]
        self.take(statistics_of(verdict))

    def take(self, values: Mapping[Statistic, float]) -> None:
        for name, value in values.items():
            p = self.tests[name].observe(value)
            if p is not None:
                self.p_values[name] = np.append(self.p_values[name], np.float32(p))[-NEWEST:]

    @property
    def bets(self) -> int:
        """How many items the test with the most was bet on; 0 while all gather."""
        return max(test.bets for test in self.tests.values())

    def strongest_finding(self, budget: float) -> DriftFinding | None:
        """Return the statistic with the most evidence where that has reached its limit."""
        name = max(STATISTICS, key=lambda name: self.tests[name].log_e)
        test, limit = self.tests[name], -math.log(budget / len(STATISTICS))
        if test.log_e < limit:
            return None
        p_values = self.p_values[name].astype(float)
        since = len(p_values) - began(p_values if test.upwards else 1 - p_values)
        return DriftFinding(name, "higher" if test.upwards else "lower", test.bets, since, test.log_e, limit)

    def to_bytes(self) -> bytes:
        """Return all of it as safetensors, some 20 kB."""
        states: dict[str, NDArray[Any]]
        states = {name: np.frombuffer(test.to_bytes(), np.uint8) for name, test in self.tests.items()}
        states |= {f"{name}.p": values for name, values in self.p_values.items()}
        return save({**states, "media": self.media})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Read back the bytes of `to_bytes`; None where a version with other bets wrote them."""
        arrays = load(data)
        tests: dict[Statistic, ShiftTest] = {}
        for name in STATISTICS:
            state = arrays.get(name)
            test = None if state is None else ShiftTest.from_bytes(state.tobytes())
            if test is None:
                return None
            tests[name] = test
        return cls(tests, {name: arrays[f"{name}.p"] for name in STATISTICS}, arrays["media"])


def statistics_of(verdict: Verdict) -> dict[Statistic, float]:
    """Return a verdict's watched statistics; without those that its release does not give, or not finite."""
    values: dict[Statistic, float | None] = {
        "unknown_score": verdict.unknown_score,
        "energy": verdict.energy,
        "embedding_novelty": (verdict.unknown_parts or {}).get("embedding_novelty"),
    }
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
