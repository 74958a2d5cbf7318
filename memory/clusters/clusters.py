"""Unknowns gathered into clusters that a person can judge at one look.

Density clustering in 300 features finds little in a few dozen items. So the shelf is asked a question that
labelled data answers better: which of these does no known class explain? What is left is divided by
source, as far as sources can be told apart, and within that only where two parts stand clearly apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import mode
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.covariance import LedoitWolf
from sklearn.metrics import pairwise_distances_chunked
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from threadpoolctl import threadpool_limits

from memory.clusters.joining import Part, assign_to_parts, discriminant, parts_of_many
from memory.features import Floats, Scaling

_FOLDS = 5
_FEWEST_OF_A_CLASS = 10
_MOST_OF_A_CLASS = 200
_AXES = 12
_ROUNDS = 6
_CLEARLY_APART = 1.0
_OTHER_SOURCE = 0.8
_FOUNDS, _MOST_SOURCES = 4, 100
_COMPARED, _WORKING_MIB = 4000, 32
_NEW = ""
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Cluster:
    """Unknown items that seem to be of one kind.

    members are ids, the nearest to the medoid first (the medoid itself leads); distances are
    theirs from it, and spread their root mean square, in the units of `Index.search`. resembles
    is the known class that explains them, None where none does. unclustered: these are the items
    that fit nowhere, and of many kinds.
    """

    members: tuple[str, ...]
    distances: tuple[float, ...]
    spread: float
    resembles: str | None
    unclustered: bool = False


def cluster(
    ids: Sequence[str],
    raw: NDArray[np.float32],
    known: NDArray[np.float32],
    classes: Sequence[str],
    smallest: int,
    most: int = 2000,
    sources: Sequence[str] = (),
) -> list[Cluster]:
    """Return clusters of at least `smallest` items, the largest new ones first, the unclustered last.

    raw is float32 (n, F), the raw features of ids; known float32 (m, F) those of labelled items
    with their classes; sources are those of ids, none: one for all. Of more than `most` items, clusters are
    found among a sample, as `memory.clusters.joining` says. The same items give the same in any order.
    """
    if not ids:
        return []
    order = sorted(range(len(ids)), key=lambda i: ids[i])
    names, raw = [ids[i] for i in order], raw[order]
    of = np.array([sources[i] if sources else "" for i in order], str)
    chosen = useful(classes)
    known, labels = known[chosen], np.array(classes, str)[chosen]
    scaling = Scaling.fit(known if len(known) else raw[:: -(-len(raw) // most)])
    z = scaling.apply(raw)
    taught = scaling.apply(known) if len(known) else known

    def find(some: NDArray[np.int64]) -> tuple[list[Part], NDArray[np.int64]]:
        return _parts(z[some], of[some], taught, labels, smallest)

    # These many small products gain nothing from threads, and beside busy processes lose five times over.
    with threadpool_limits(1):
        parts, rest = parts_of_many(z, names, find, partial(_stand_apart, z, of), smallest, most)
    parts.sort(key=lambda p: (p[0] is not None, -len(p[1]), names[p[1][0]]))
    described = [describe(names, z, rows, resembles) for resembles, rows in parts]
    if len(rest):
        described.append(describe(names, z, rest, None, unclustered=True))
    return described


def useful(classes: Sequence[str]) -> list[int]:
    """Return which labelled items, by their classes, teach: of classes with enough, at most some of each."""
    labels = np.array(classes, str)
    rows: list[int] = []
    for name in np.unique(labels):
        of_class = np.flatnonzero(labels == name)
        if len(of_class) >= _FEWEST_OF_A_CLASS:
            step = max(1, -(-len(of_class) // _MOST_OF_A_CLASS))
            rows += of_class[::step].tolist()
    return rows


def _parts(
    z: NDArray[np.float32],
    sources: NDArray[np.str_],
    known: NDArray[np.float32],
    labels: NDArray[np.str_],
    smallest: int,
) -> tuple[list[Part], NDArray[np.int64]]:
    """Return the parts into which rows of z fall, and the rows, ascending, of parts that are too small."""
    parts: list[Part] = []
    rest: list[NDArray[np.int64]] = []
    explained = _explained_by(z, known, labels)
    for name in np.unique(explained):
        rows = np.flatnonzero(explained == name)
        by_source = _by_source(z, rows, sources) if name == _NEW else []
        for part in [p for some in by_source for p in _divide(z, some, smallest)] or [rows]:
            if len(part) < smallest:
                rest.append(part)
            else:
                parts.append((str(name) or None, part))
    return parts, np.sort(np.concatenate(rest)) if rest else np.zeros(0, np.int64)


def _explained_by(z: Floats, known: Floats, labels: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return for each row of z the known class that explains it, or _NEW.

    The shelf is one more class beside the known ones, with equal priors; shrunk linear
    discriminants, out of fold, say which rows rather belong to it. A known class's rows that
    strayed onto the shelf are few there and many among the known, so they go home. (Learning from
    positive and unlabelled data, after Elkan and Noto 2008, with many positives.)
    """
    if len(z) < 2 * _FOLDS or not len(known):
        return np.full(len(z), _NEW)
    rows = np.concatenate([known, z]).astype(np.float64)
    classes = np.concatenate([labels, np.full(len(z), _NEW)])
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    predicted = cross_val_predict(discriminant(len(np.unique(classes))), rows, classes, cv=folds)
    return np.asarray(predicted[len(known) :], str)


def _by_source(z: Floats, rows: Rows, sources: NDArray[np.str_]) -> list[Rows]:
    """Return rows by source; sources that cannot be told apart are one part.

    A dozen kinds together are one wide heap in which no cut is clear. Sources are given, not sought in the
    items: what comes from two in the same way has an AUC out of fold of about a half. Sources of few items,
    and all but the hundred largest, count as one; where these are few together, they join what they are like.
    """
    _, which, counts = np.unique(sources[rows], return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(-counts, kind="stable"))
    numbers = np.where((counts < _FOUNDS) | (rank >= _MOST_SOURCES), -1, np.arange(len(counts)))[which]
    parts = [rows[numbers == number] for number in np.unique(numbers)]
    few = parts.pop(0) if len(parts) > 1 and len(parts[0]) < _FOUNDS else rows[:0]
    while pairs := _alike(z, parts):
        for first, other in pairs:
            parts[first] = np.sort(np.concatenate([parts[first], parts[other]]))
        gone = {other for _, other in pairs}
        parts = [part for number, part in enumerate(parts) if number not in gone]
    if not len(few):
        return parts
    to = assign_to_parts(z, parts, few)
    return [np.sort(np.concatenate([part, few[to == i]])) for i, part in enumerate(parts)] + [few[to < 0]]


def _alike(z: NDArray[np.float32], parts: Sequence[NDArray[np.int64]]) -> list[tuple[int, int]]:
    """Return pairs of parts, the likest first and each part once, that discriminants cannot tell apart."""
    if len(parts) < 2:
        return []
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    scores = separation_scores(z[np.concatenate(parts)].astype(np.float64), numbers, 0)
    scores = np.stack([-scores, scores], 1) if scores.ndim == 1 else scores
    close, pairs, taken = [], list[tuple[int, int]](), set[int]()
    for this, other in combinations(range(len(parts)), 2):
        second = scores[:, other] - scores[:, this]
        auc = float((second[numbers == other][:, None] > second[numbers == this]).mean())
        close.append((auc, this, other))
    for auc, this, other in sorted(close):
        if auc < _OTHER_SOURCE and taken.isdisjoint((this, other)):
            pairs.append((this, other))
            taken |= {this, other}
    return pairs


def _divide(z: NDArray[np.float32], rows: NDArray[np.int64], smallest: int) -> list[NDArray[np.int64]]:
    """Return rows in two or more parts where they fall apart, else as they are."""
    if len(rows) < 2 * smallest or not np.ptp(z[rows], axis=0).any():
        return [rows]
    second = _second_part(z[rows].astype(np.float64), smallest)
    if second is None:
        return [rows]
    return _divide(z, rows[~second], smallest) + _divide(z, rows[second], smallest)


def _second_part(z: NDArray[np.float64], smallest: int) -> NDArray[np.bool_] | None:
    """Return which rows make the second of two parts; None where they are one.

    Two means on the widest whitened axes begin; then linear discriminants, out of fold, move rows
    until none moves. The parts are two if their out-of-fold scores are better told by two normal
    distributions than by one, by _CLEARLY_APART of BIC a row: an arbitrary cut through one
    kind does not survive that. It is strict. On the demonstration's families none of 32 single
    ones was cut, but of 32 pairs that arrived together only 2 were told apart; the others make
    one mixed cluster, which the contact sheet must show.
    """
    widest = whiten(z.astype(np.float32), z.astype(np.float32))[:, -_AXES:]
    second = KMeans(2, n_init=10, random_state=0).fit_predict(widest).astype(bool)
    scores = np.zeros(len(z))
    for turn in range(_ROUNDS):
        least = min(int(second.sum()), int((~second).sum()))
        if least < max(smallest, 2):
            return None
        scores = separation_scores(z, second, turn)
        before, second = second, scores > 0
        if (second == before).all():
            break
    if min(int(second.sum()), int((~second).sum())) < smallest:
        return None
    return second if _clearly_two(scores) else None


def _stand_apart(
    z: NDArray[np.float32], sources: NDArray[np.str_], this: NDArray[np.int64], other: NDArray[np.int64]
) -> bool:
    """Say whether two parts of n >= 2 rows are two, by the measure of sources or, of one, of a division."""
    if mode(sources[this]) != mode(sources[other]):
        return not _alike(z, [this, other])
    rows = np.concatenate([this, other])
    return _clearly_two(separation_scores(z[rows].astype(np.float64), np.arange(len(rows)) >= len(this), 0))


def separation_scores(z: NDArray[np.float64], parts: NDArray[Any], turn: int) -> NDArray[np.float64]:
    """Return how much each row rather belongs to each of some numbered parts, or to the second of two."""
    folds = StratifiedKFold(min(_FOLDS, np.bincount(parts).min()), shuffle=True, random_state=turn)
    lda = discriminant(int(parts.max()) + 1)
    return np.asarray(cross_val_predict(lda, z, parts, cv=folds, method="decision_function"), np.float64)


def _clearly_two(scores: NDArray[np.float64]) -> bool:
    column = scores[:, None]
    single, two = (GaussianMixture(k, n_init=3, random_state=0).fit(column).bic(column) for k in (1, 2))
    return bool((single - two) / len(scores) > _CLEARLY_APART)


def describe(
    names: Sequence[str], z: Floats, rows: Rows, resembles: str | None, *, unclustered: bool = False
) -> Cluster:
    """Return rows of z, float32 (n, F), scaled features, as a cluster; names are those of all n."""
    # Of very many, the medoid of some is as good.
    some = np.arange(0, len(rows), -(-len(rows) // _COMPARED))
    points = z[rows[some]].astype(np.float64)
    # All of them at once are 128 MB for 4,000, and the products as much again.
    sums = pairwise_distances_chunked(points, reduce_func=lambda d, _: d.sum(1), working_memory=_WORKING_MIB)
    medoid = int(np.concatenate(list(sums)).argmin())
    parts = np.array_split(rows, -(-len(rows) // _COMPARED))
    distances = np.concatenate([np.linalg.norm(z[part] - points[medoid], axis=1) for part in parts])
    distances /= np.sqrt(z.shape[1])
    # A twin of the medoid is at distance 0 too; the medoid leads.
    order = np.lexsort((rows, distances, np.arange(len(rows)) != some[medoid]))
    members = tuple(names[rows[i]] for i in order)
    spread = float(np.sqrt((distances**2).mean()))
    return Cluster(members, tuple(distances[order].tolist()), spread, resembles, unclustered)


def whiten(scaled: NDArray[np.float32], by: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scaled, float32 (n, F), in the axes and units in which the covariance of `by` is the identity.

    The covariance is shrunk as in Ledoit and Wolf 2004, "A well-conditioned estimator for
    large-dimensional covariance matrices"; `by` is float32 (m, F), m >= 2.
    """
    estimate = LedoitWolf().fit(by.astype(np.float64))
    values, vectors = np.linalg.eigh(estimate.covariance_)
    transform = vectors / np.sqrt(np.maximum(values, 1e-9))
    return np.asarray((scaled - estimate.location_) @ transform, np.float32)
