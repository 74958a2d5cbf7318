"""How often the interval of memory.estimate holds the share of verdicts that is right, by simulation.

A window is ITEMS verdicts that say real or one of two families. A healthy release's probabilities are
calibrated; an overconfident one's logits are 1.5 times as large as they should be. Under drift, a share of
what is called real in the second half is forged by an unseen family. Of unseen sources each has logits that
are moved and scaled by its own numbers, which the release does not know, and they come one after another.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import binomtest

from memory.estimate.accuracy import Residual, correct
from memory.estimate.records import LEAST_AUDITED
from memory.estimate.sums import is_drawn
from updater.progress import Progress

Case = Literal["calibrated", "overconfident", "10 % forged", "30 % forged", "unseen sources"]
CASES: dict[Case, float] = {
    "calibrated": 0.0,
    "overconfident": 0.0,
    "10 % forged": 0.1,
    "30 % forged": 0.3,
    "unseen sources": 0.0,
}
"""With the share that is forged of the reals of the second half."""

ITEMS = 4000
LOOKS = 10
"""Times in a window that the interval is looked at; the last is its end."""

_SHARES = (0.7, 0.2, 0.1)
_OVERCONFIDENT, _SOURCES = 1.5, 5


@dataclass(frozen=True)
class Coverage:
    """Of so many windows, in how many an interval was stated at the end, and held what is right.

    low, high: of the share that held, 95 %, Clopper and Pearson.
    """

    case: Case
    of: str
    """all, or what was said"""
    windows: int
    stated: int
    covered: int
    """at the end, of the stated"""
    low: float
    high: float
    always: int
    """of the stated, covered at every look at which one was stated"""
    half_width: float
    """mean, of the interval at the end"""


@dataclass(frozen=True)
class _Window:
    said: NDArray[np.int64]
    probability: NDArray[np.float64]
    right: NDArray[np.bool_]


def measure(windows: int, audited: int, seed: int, progress: Progress) -> Iterator[Coverage]:
    """Yield the coverage for each of CASES; audited: items that are drawn of a window, on average."""
    rng = np.random.default_rng(seed)
    groups = {"all": None, "real": 0, "first family": 1, "second family": 2}
    chance = audited / ITEMS
    for case in CASES:
        widths, held, always = defaultdict[str, list[float]](list), Counter[str](), Counter[str]()
        for number in range(windows):
            window = _window(case, rng)
            key = rng.bytes(32)
            taken = np.array([is_drawn(key, f"media-0-{n}", chance) for n in range(ITEMS)])
            for of, called in groups.items():
                here = np.ones(ITEMS, bool) if called is None else window.said == called
                looks = list(_looks(window, here, taken, chance))
                if looks[-1] is not None:
                    held[of] += looks[-1][0]
                    always[of] += all(look[0] for look in looks if look is not None)
                    widths[of].append(looks[-1][1])
            progress(f"{case} windows", number + 1, windows)
        for of, found in widths.items():
            low, high = binomtest(held[of], len(found)).proportion_ci(method="exact")
            half = float(np.mean(found)) / 2
            yield Coverage(case, of, windows, len(found), held[of], float(low), float(high), always[of], half)


def _window(case: Case, rng: np.random.Generator) -> _Window:
    said = rng.choice(3, ITEMS, p=_SHARES)
    probability = rng.beta(9, 1, ITEMS)
    logits = logit(np.clip(probability, 1e-9, 1 - 1e-9))
    true = probability
    if case == "overconfident":
        probability = expit(_OVERCONFIDENT * logits)
    if case == "unseen sources":
        source = np.arange(ITEMS) * _SOURCES // ITEMS
        moved, scaled = rng.normal(-1.5, 1.5, (_SOURCES, 3)), rng.uniform(-0.2, 1.2, (_SOURCES, 3))
        true = expit(moved[source, said] + scaled[source, said] * logits)
    forged = (said == 0) & (rng.random(ITEMS) < CASES[case]) & (np.arange(ITEMS) >= ITEMS // 2)
    return _Window(said, probability, (rng.random(ITEMS) < true) & ~forged)


def _looks(
    window: _Window, here: NDArray[np.bool_], taken: NDArray[np.bool_], chance: float
) -> Iterator[tuple[bool, float] | None]:
    """Yield of each look whether the interval holds what is right, and its width; None: none is stated."""
    for until in np.linspace(0, ITEMS, LOOKS + 1, dtype=int)[1:]:
        p, right = window.probability[:until][here[:until]], window.right[:until][here[:until]]
        residuals = (right - p)[taken[:until][here[:until]]]
        if len(residuals) < LEAST_AUDITED:
            yield None
            continue
        audited = [Residual(float(r), float(r), chance) for r in residuals]
        share = correct(len(p), float(p.sum()), audited, chance)
        yield bool(share.low <= right.mean() <= share.high), share.high - share.low
