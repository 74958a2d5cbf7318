"""An update's rehearsed items of the live release's families, herded, and its items to measure on.

Each is a budget's share of its shelf. The choice is made for one update and kept nowhere. So a candidate
that is rejected, or a release that is rolled back, costs no data. The same memory, live release and budget
give the same choice.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from detector.release.manifest import FEATURE_VERSION
from memory.features import Scaling
from memory.labels import standing_labels
from memory.records import REAL, Exemplar, Split
from memory.rows import select_exemplars, select_features
from memory.store import Store

_ROWS_AT_ONCE = 2**14
MAX_PER_SOURCE = 1000
"""Most exemplars of a class and a source to rehearse: one producer cannot be a whole class."""

MEASURED: tuple[Split, ...] = ("calibration", "test")


@dataclass(frozen=True)
class Rehearsal:
    """A budget's choice. kept: exemplars to rehearse, by class; resting: ids of those over the budget."""

    kept: Mapping[str, int]
    resting: frozenset[str]


def choose_rehearsal(
    store: Store,
    classes: Collection[str],
    newest_label: int,
    budget: int,
    max_per_source: int = MAX_PER_SOURCE,
) -> Rehearsal:
    """Choose at most `budget` exemplars of those on the rehearsal shelf that a release has learnt.

    It has learnt what bears one of its classes (real is one) by a label that is no newer than
    newest_label; whatever was labelled since is to be learnt in whole and is neither counted nor left
    out. The places go to the classes by `shares`, and within each in herding order; of one class and
    source at most max_per_source. Exemplars whose features are not of FEATURE_VERSION cannot be compared:
    they are not counted and never rest. Raises StoreUnavailableError.
    """
    with store.read() as connection:
        shelf = select_exemplars(connection, shelf="rehearsal", feature_version=FEATURE_VERSION)
        labels = standing_labels(connection)
        learnt = [e for e in shelf if e.family in classes and labels.get(e.id, 0) <= newest_label]
        matrix = _features(connection, learnt)
    by_class: dict[str, list[int]] = {}
    for i, exemplar in enumerate(learnt):
        by_class.setdefault(str(exemplar.family), []).append(i)
    most: Counter[str] = Counter()
    for (name, _), count in Counter((str(e.family), e.source) for e in learnt).items():
        most[name] += min(count, max_per_source)
    places = shares(most, budget)
    resting: set[str] = set()
    for name, of in by_class.items():
        sources = [learnt[i].source for i in of]
        chosen = set(herd(matrix[of], places[name], sources, max_per_source).tolist())
        resting |= {learnt[i].id for n, i in enumerate(of) if n not in chosen}
    return Rehearsal(places, frozenset(resting))


def _features(connection: Connection, exemplars: Sequence[Exemplar]) -> NDArray[np.float32]:
    """Return the exemplars' robustly scaled features, float32 (n, F)."""
    if not exemplars:
        return np.zeros((0, 0), np.float32)
    raw = select_features(connection, FEATURE_VERSION, ids=[e.id for e in exemplars]).matrix
    return Scaling.fit(raw).apply(raw)


def herd(
    features: NDArray[np.float32],
    count: int,
    sources: Sequence[str] | None = None,
    max_per_source: int | None = None,
) -> NDArray[np.int64]:
    """Return the rows of features, float32 (n, D), that stand best for their mean, the best first.

    Rebuffi et al. 2017, "iCaRL", algorithm 4, as CDDB uses it: rows are L2-normalised to phi with
    mean mu, and the k-th pick minimises |mu - (phi + sum of those picked) / k|. Ties go to the
    lower row. A shorter answer is always the beginning of a longer one. At most count rows, and of
    one source (sources: one for each row) at most max_per_source.
    """
    phi = features.astype(np.float64)
    for block in _blocks(phi):
        block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)
    mean = phi.mean(axis=0) if len(phi) else np.zeros(phi.shape[1])
    total = np.zeros_like(mean)
    free = np.ones(len(phi), bool)
    taken: Counter[str] = Counter()
    picked: list[int] = []
    while len(picked) < count and free.any():
        distance = np.concatenate(
            [np.linalg.norm(mean - (block + total) / (len(picked) + 1), axis=1) for block in _blocks(phi)]
        )
        distance[~free] = np.inf
        best = int(distance.argmin())
        picked.append(best)
        total += phi[best]
        free[best] = False
        if sources is not None and max_per_source is not None:
            taken[sources[best]] += 1
            if taken[sources[best]] >= max_per_source:
                free &= np.array([s != sources[best] for s in sources])
    return np.array(picked, np.int64)


def _blocks(rows: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return views of some rows each: what is computed of a million at once would be as large as they are."""
    return [rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE)]


def shares(available: Mapping[str, int], budget: int) -> dict[str, int]:
    """Return the places of each class: the same for all, or its count where that is less.

    Places that a class cannot fill go to the others (max-min fairness, filled like water), so the sum
    is the budget, or all that there is. A place that does not divide goes to the larger class, of
    equals to the later name.
    """
    places: dict[str, int] = {}
    for name in sorted(available, key=lambda name: (available[name], name)):
        places[name] = min(available[name], budget // (len(available) - len(places)))
        budget -= places[name]
    return places


def choose_resting(store: Store, budget: int) -> frozenset[str]:
    """Return the ids of held-back exemplars that `ids_to_measure` leaves out, of calibration and test each.

    Raises StoreUnavailableError.
    """
    with store.read() as connection:
        return frozenset().union(*(_over(connection, split, budget) for split in MEASURED))


def ids_to_measure(shelf: Sequence[Exemplar], budget: int) -> set[str]:
    """Return the ids of at most `budget` of labelled exemplars to measure on.

    Half of the places are for reals, since the gates bound shares of them, and half for families, to each
    as many; within a class each source gets as many. Places that one cannot fill go to the others. Of a
    source the first are one item of each group, since a group is one witness, in the order of a hash.
    """
    places = shares(Counter("real" if e.family == REAL else "fake" for e in shelf), budget)
    by_class: dict[str, list[Exemplar]] = defaultdict(list)
    for exemplar in shelf:
        by_class[str(exemplar.family)].append(exemplar)
    families = {name: len(of) for name, of in by_class.items() if name != REAL}
    of_class = {REAL: places.get("real", 0), **shares(families, places.get("fake", 0))}
    chosen: set[str] = set()
    for name, of in by_class.items():
        by_source: dict[str, list[Exemplar]] = defaultdict(list)
        for exemplar in of:
            by_source[exemplar.source].append(exemplar)
        of_source = shares({source: len(items) for source, items in by_source.items()}, of_class[name])
        for source, items in by_source.items():
            chosen |= {e.id for e in _in_turn(items)[: of_source[source]]}
    return chosen


def _over(connection: Connection, split: Split, budget: int) -> set[str]:
    shelf = [e for e in select_exemplars(connection, shelf="held-back", split=split) if e.family is not None]
    return {e.id for e in shelf} - ids_to_measure(shelf, budget)


def _in_turn(items: Sequence[Exemplar]) -> list[Exemplar]:
    """Return the items, of each group the first, then of each the second, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int, Exemplar]] = []
    for exemplar in sorted(items, key=lambda e: (_hash(e.group), _hash(e.id))):
        turns.append((seen[exemplar.group], len(turns), exemplar))
        seen[exemplar.group] += 1
    return [exemplar for *_, exemplar in sorted(turns, key=lambda turn: turn[:2])]


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
