"""Whether verdicts on real pictures raise alarms of drift, and how soon those of another camera do.

The verdicts are what `forgewatch score --json` printed. Fewer than a stream needs are drawn again and again.
"""

import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from drift_power import ITEMS, MOST, SEEDS, begin, named, run
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.stats import binomtest

from detector.records import Verdict
from memory.shift.drift import STATISTICS, statistics_of
from updater.data.layouts.entries import DataError
from updater.progress import Progress

SHARES = (1.0, 0.5)
"""Of the items, how many are of the other camera once it came."""

_NUMBERS = (1, 2)
"""Of the test: over all, and of the source's own."""


class ScoresError(DataError):
    """A file has no verdicts that can be read."""


@dataclass(frozen=True)
class Unchanged:
    """Of streams of one's own items, how many raised an alarm; low and high: 95 %, Clopper and Pearson.

    pictures: how many there are to draw from. highest: ln of the evidence, of all streams and moments.
    """

    pictures: int
    items: int
    alarms: int
    streams: int
    low: float
    high: float
    highest: float


@dataclass(frozen=True)
class Change:
    """Items until the alarm once another camera came, as `DriftPower` has them."""

    pictures: int
    share: float
    number: int
    low: float
    median: float
    high: float
    within_100: float


def read_statistics(path: Path) -> NDArray[np.float64]:
    """Return what is watched of each verdict of a file, [n, STATISTICS]; NaN where a release gives none.

    Raises ScoresError.
    """
    rows = []
    try:
        for line in path.read_text().splitlines():
            found = statistics_of(Verdict.model_validate(json.loads(line)["verdict"]))
            rows.append([found.get(name, math.nan) for name in STATISTICS])
    except (OSError, ValueError, ValidationError, LookupError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise ScoresError(f"{path} is not what forgewatch score --json prints: {why}") from error
    if not rows:
        raise ScoresError(f"{path} has no verdicts: write there what forgewatch score --json prints")
    return np.array(rows)


def unchanged(own: NDArray[np.float64], seed: int, progress: Progress) -> Unchanged:
    """Return the false alarms of SEEDS streams: one in the file's order, where it is long enough."""
    rng = np.random.default_rng(seed)
    alarms, highest = 0, -math.inf
    for stream in range(SEEDS):
        rows = own[:ITEMS] if stream == 0 and len(own) >= ITEMS else _drawn(own, ITEMS, rng)
        taken, most = run(begin(rng), rows, 1)
        alarms, highest = alarms + (taken < math.inf), max(highest, most)
        progress(f"{ITEMS} items of your own", stream + 1, SEEDS)
    low, high = binomtest(alarms, SEEDS).proportion_ci(method="exact")
    return Unchanged(len(own), ITEMS, alarms, SEEDS, float(low), float(high), highest)


def changed(
    own: NDArray[np.float64],
    other: NDArray[np.float64],
    before: int,
    streams: int,
    seed: int,
    progress: Progress,
) -> Iterator[Change]:
    """Yield how soon the other camera is told after `before` items of one's own, by share and test."""
    rng = np.random.default_rng(seed)
    tests = []
    for stream in range(streams):
        test = begin(rng)
        for values in _drawn(own, before, rng):
            test.take(named(values))
        tests.append(test)
        progress("items before the other camera", stream + 1, streams)
    for share in SHARES:
        for number in _NUMBERS:
            taken = []
            for stream, test in enumerate(tests, start=1):
                of_other = rng.random((MOST, 1)) < share
                rows = np.where(
                    of_other,
                    other[rng.integers(len(other), size=MOST)],
                    own[rng.integers(len(own), size=MOST)],
                )
                taken.append(run(copy.deepcopy(test), rows, number)[0])
                progress(f"{share:.0%} of the other camera, test {number}", stream, streams)
            low, median, high = np.quantile(taken, (0.1, 0.5, 0.9), method="inverted_cdf")
            soon = float(np.mean(np.array(taken) <= 100))
            yield Change(len(other), share, number, float(low), float(median), float(high), soon)


def replay_json(steady: Unchanged, changes: Sequence[Change]) -> str:
    """Return all figures as JSON; items are null where that quantile of the streams raised no alarm."""
    found = [{k: None if v == math.inf else v for k, v in asdict(each).items()} for each in changes]
    return json.dumps({"unchanged": asdict(steady), "changed": found}, indent=1, allow_nan=False) + "\n"


def _drawn(rows: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return rows[rng.choice(len(rows), count, replace=len(rows) < count)]
