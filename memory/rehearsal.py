"""What an update rehearses of what the live release has learnt: a budget's share of each class, herded.

The choice is made for one update and kept nowhere. So a candidate that is rejected, or a release that
is rolled back, costs no data, and the same memory, live release and budget give the same choice.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from detector.release.architecture import FEATURE_VERSION
from memory.herding import herd, shares
from memory.index.scaling import Scaling
from memory.records import Exemplar
from memory.rows import select_exemplars, select_features
from memory.schema import labelled, labels
from memory.store import Store


@dataclass(frozen=True)
class Rehearsal:
    """A budget's choice. kept: exemplars to rehearse, by class; resting: ids of those over the budget."""

    kept: Mapping[str, int]
    resting: frozenset[str]


def choose_rehearsal(
    store: Store, classes: Collection[str], newest_label: int, budget: int, max_per_source: int
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
        new = _labelled_after(connection, newest_label)
        learnt = [e for e in shelf if e.family in classes and e.id not in new]
        matrix = _features(connection, learnt)
    by_class: dict[str, list[int]] = {}
    for i, exemplar in enumerate(learnt):
        by_class.setdefault(str(exemplar.family), []).append(i)
    places = shares(
        {name: _fitting([learnt[i].source for i in of], max_per_source) for name, of in by_class.items()},
        budget,
    )
    resting: set[str] = set()
    for name, of in by_class.items():
        sources = [learnt[i].source for i in of]
        chosen = set(herd(matrix[of], places[name], sources, max_per_source).tolist())
        resting |= {learnt[i].id for n, i in enumerate(of) if n not in chosen}
    return Rehearsal(places, frozenset(resting))


def _labelled_after(connection: Connection, label: int) -> set[str]:
    """Return the ids of exemplars whose newest label that was not undone is newer than this one."""
    undone = select(labels.c.undoes).where(labels.c.undoes.is_not(None))
    newest = (
        select(labelled.c.exemplar)
        .where(labelled.c.label.not_in(undone))
        .group_by(labelled.c.exemplar)
        .having(func.max(labelled.c.label) > label)
    )
    return set(connection.scalars(newest))


def _fitting(sources: Sequence[str], max_per_source: int) -> int:
    """Return how many exemplars of these sources can be chosen."""
    return sum(min(count, max_per_source) for count in Counter(sources).values())


def _features(connection: Connection, exemplars: Sequence[Exemplar]) -> NDArray[np.float32]:
    """Return the exemplars' robustly scaled features, float32 (n, F)."""
    if not exemplars:
        return np.zeros((0, 0), np.float32)
    raw = select_features(connection, FEATURE_VERSION, ids=[e.id for e in exemplars]).matrix
    return Scaling.fit(raw).apply(raw)
