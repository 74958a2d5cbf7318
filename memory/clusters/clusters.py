"""Unknowns gathered into clusters that a person can judge at one look.

Density clustering in 300 features finds little in a few dozen items. So the shelf is asked a question that
labelled data answers better: which of these does no known class explain? What is left is
divided only where two parts stand clearly apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.covariance import LedoitWolf
from sklearn.metrics import pairwise_distances_chunked
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from threadpoolctl import threadpool_limits

from memory.clusters.joining import Part, discriminant, parts_of_many
from memory.features import Scaling

_FOLDS = 5
_FEWEST_OF_A_CLASS = 10
_MOST_OF_A_CLASS = 200
_AXES = 12
_ROUNDS = 6
_CLEARLY_APART = 1.0
_COMPARED, _WORKING_MIB = 4000, 32
_NEW = ""


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

    @property
    def size(self) -> int:
        """Count of members."""
        return len(self.members)

    @property
    def medoid(self) -> str:
        """The member whose distances to the others sum up to the least."""
        return self.members[0]


def cluster(
    ids: Sequence[str],
    raw: NDArray[np.float32],
    known: NDArray[np.float32],
    classes: Sequence[str],
    smallest: int,
    most: int = 2000,
) -> list[Cluster]:
    """Return clusters of at least `smallest` items, the largest new ones first, the unclustered last.

    raw is float32 (n, F), the raw features of ids; known float32 (m, F) those of labelled items
    with their classes. Of more than `most` items, clusters are found among a sample, as
    `memory.clusters.joining` says. The same items give the same clusters, in whatever order they come.
    """
    if not ids:
        return []
    order = sorted(range(len(ids)), key=lambda i: ids[i])
    names, raw = [ids[i] for i in order], raw[order]
    chosen = useful(classes)
    known, labels = known[chosen], np.array(classes, str)[chosen]
    scaling = Scaling.fit(known if len(known) else raw[:: -(-len(raw) // most)])
    z = scaling.apply(raw)
    taught = scaling.apply(known) if len(known) else known
    # These many small products gain nothing from threads, and beside busy processes lose five times over.
    with threadpool_limits(1):
        if len(z) <= most:
            parts, rest = _parts(z, taught, labels, smallest)
        else:
            parts, rest = parts_of_many(
                z, names, lambda some: _parts(some, taught, labels, smallest), stand_apart, smallest, most
            )
    parts.sort(key=lambda p: (p[0] is not None, -len(p[1]), names[p[1][0]]))
    found = [describe(names, z, rows, resembles) for resembles, rows in parts]
    if len(rest):
        found.append(describe(names, z, rest, None, unclustered=True))
    return found


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
    z: NDArray[np.float32], known: NDArray[np.float32], labels: NDArray[np.str_], smallest: int
) -> tuple[list[Part], NDArray[np.int64]]:
    """Return the parts into which rows of z fall, and the rows, ascending, of parts that are too small."""
    parts: list[Part] = []
    rest: list[NDArray[np.int64]] = []
    explained = _explained(z, known, labels)
    for name in np.unique(explained):
        rows = np.flatnonzero(explained == name)
        for part in _divide(z, rows, smallest) if name == _NEW else [rows]:
            if len(part) < smallest:
                rest.append(part)
            else:
                parts.append((str(name) or None, part))
    return parts, np.sort(np.concatenate(rest)) if rest else np.zeros(0, np.int64)


def _explained(
    z: NDArray[np.float32], known: NDArray[np.float32], labels: NDArray[np.str_]
) -> NDArray[np.str_]:
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
    predicted = cross_val_predict(
        discriminant(len(np.unique(classes))),
        rows,
        classes,
        cv=StratifiedKFold(_FOLDS, shuffle=True, random_state=0),
    )
    return np.asarray(predicted[len(known) :], str)


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
        scores = _told_apart(z, second, turn)
        before, second = second, scores > 0
        if (second == before).all():
            break
    if min(int(second.sum()), int((~second).sum())) < smallest:
        return None
    return second if _clearly_two(scores) else None


def stand_apart(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Say whether two parts, float32 (n, F) and (m, F), n, m >= 2, are two by the measure of a division."""
    z = np.concatenate([one, other]).astype(np.float64)
    return _clearly_two(_told_apart(z, np.arange(len(z)) >= len(one), 0))


def _told_apart(z: NDArray[np.float64], second: NDArray[np.bool_], turn: int) -> NDArray[np.float64]:
    """Return how much each row rather belongs to the second of two parts, out of fold."""
    least = min(int(second.sum()), int((~second).sum()))
    folds = StratifiedKFold(min(_FOLDS, least), shuffle=True, random_state=turn)
    scores = cross_val_predict(discriminant(2), z, second, cv=folds, method="decision_function")
    return np.asarray(scores, np.float64)


def _clearly_two(scores: NDArray[np.float64]) -> bool:
    one, two = (
        GaussianMixture(k, n_init=3, random_state=0).fit(scores[:, None]).bic(scores[:, None]) for k in (1, 2)
    )
    return bool((one - two) / len(scores) > _CLEARLY_APART)


def describe(
    names: Sequence[str],
    z: NDArray[np.float32],
    rows: NDArray[np.int64],
    resembles: str | None,
    *,
    unclustered: bool = False,
) -> Cluster:
    """Return rows of z, float32 (n, F), scaled features, as a cluster; names are those of all n."""
    # Of very many, the medoid of some is as good.
    some = np.arange(0, len(rows), -(-len(rows) // _COMPARED))
    points = z[rows[some]].astype(np.float64)
    # All of them at once are 128 MB for 4,000, and the products as much again.
    sums = pairwise_distances_chunked(
        points, reduce_func=lambda far, _: far.sum(1), working_memory=_WORKING_MIB
    )
    medoid = int(np.concatenate(list(sums)).argmin())
    parts = np.array_split(rows, -(-len(rows) // _COMPARED))
    distances = np.concatenate([np.linalg.norm(z[part] - points[medoid], axis=1) for part in parts])
    distances /= np.sqrt(z.shape[1])
    # A twin of the medoid is at distance 0 too; the medoid leads.
    order = np.lexsort((rows, distances, np.arange(len(rows)) != some[medoid]))
    members = tuple(names[rows[i]] for i in order)
    return Cluster(
        members=members,
        distances=tuple(float(distances[i]) for i in order),
        spread=float(np.sqrt((distances**2).mean())),
        resembles=resembles,
        unclustered=unclustered,
    )


def whiten(scaled: NDArray[np.float32], by: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scaled, float32 (n, F), in the axes and units in which the covariance of `by` is the identity.

    The covariance is shrunk as in Ledoit and Wolf 2004, "A well-conditioned estimator for
    large-dimensional covariance matrices"; `by` is float32 (m, F), m >= 2.
    """
    estimate = LedoitWolf().fit(by.astype(np.float64))
    values, vectors = np.linalg.eigh(estimate.covariance_)
    transform = vectors / np.sqrt(np.maximum(values, 1e-9))
    return np.asarray((scaled - estimate.location_) @ transform, np.float32)
