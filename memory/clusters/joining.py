"""Clusters of more items than can be compared with one another.

They are found among a sample; the others join those that they belong to; and among what belongs to none they
are sought again, so that a small kind shows once the large ones are out of its way.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

Part = tuple[str | None, NDArray[np.int64]]
"""The known class that explains some rows, or None, and the rows."""

Find = Callable[[NDArray[np.int64]], tuple[list[Part], NDArray[np.int64]]]
"""Gives the parts of few rows, by their places among these, and what is left of them."""

_SEARCHES = 8
_NEIGHBOURS = 5
_INSIDE = 0.95
"""Share of a part's like that joins it at once; the others are found again. Strays in a part are fewer."""
_ROWS_AT_ONCE = 4096
_COMPARED = 300


def discriminant(classes: int) -> LinearDiscriminantAnalysis:
    """Return shrunk linear discriminants for so many classes, with equal priors."""
    return LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=np.full(classes, 1 / classes))


def parts_of_many(
    z: NDArray[np.float32],
    names: Sequence[str],
    find: Find,
    apart: Callable[[NDArray[np.int64], NDArray[np.int64]], bool],
    smallest: int,
    most: int,
) -> tuple[list[Part], NDArray[np.int64]]:
    """Return the parts of the rows of z, float32 (n, F), and the rows, ascending, that belong to none.

    find sees at most `most` rows at once; apart says whether two parts are two. Which rows are the
    sample follows from their names, so that a new item changes little.
    """
    drawn = np.argsort([hashlib.sha256(name.encode()).digest()[:8] for name in names], kind="stable")
    left, parts = drawn, list[Part]()
    for _ in range(_SEARCHES):
        sample, others = np.sort(left[:most]), left[most:]
        kinds, rest = find(sample)
        kinds = [(resembles, sample[rows]) for resembles, rows in kinds]
        if kinds and len(others):
            which = assign_to_parts(z, [rows for _, rows in kinds], others)
            grown = [np.concatenate([rows, others[which == i]]) for i, (_, rows) in enumerate(kinds)]
            kinds = [(name, rows) for (name, _), rows in zip(kinds, grown, strict=True)]
            others = others[which < 0]
        earlier = len(parts)
        for part in kinds:
            _put(parts, earlier, part, apart)
        left = np.concatenate([others, sample[rest]])
        if not kinds or not len(others) or len(left) < smallest:
            break
    return [(resembles, np.sort(rows)) for resembles, rows in parts], np.sort(left)


def assign_to_parts(
    z: NDArray[np.float32], parts: Sequence[NDArray[np.int64]], others: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return for each of the other rows of z the number of the part that it joins, -1 for none.

    found and others are rows of z, float32 (n, F). Linear discriminants say which part it would be; it joins
    where it is no further from the nearest members than nearly all members are from theirs, which is a
    conformal bound.
    """
    which = np.full(len(others), -1)
    members = [z[rows] for rows in parts]
    bounds = [np.quantile(_distances(own, own, skip=1), _INSIDE) for own in members]
    numbers = np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
    model = discriminant(len(parts)) if len(parts) > 1 else None
    if model is not None:
        model.fit(np.concatenate(members).astype(np.float64), numbers)
    for start in range(0, len(others), _ROWS_AT_ONCE):
        some = z[others[start : start + _ROWS_AT_ONCE]]
        likest = np.zeros(len(some), int) if model is None else model.predict(some.astype(np.float64))
        for number, (own, bound) in enumerate(zip(members, bounds, strict=True)):
            mine = np.flatnonzero(likest == number)
            if len(mine):
                inside = mine[_distances(some[mine], own) <= bound]
                which[start + inside] = number
    return which


def _distances(rows: NDArray[np.float32], own: NDArray[np.float32], skip: int = 0) -> NDArray[np.float32]:
    """Return each row's mean distance to its nearest of some others, without the `skip` first."""
    squares = (rows**2).sum(1)[:, None] + (own**2).sum(1)[None] - 2 * rows @ own.T
    last = min(skip + _NEIGHBOURS, len(own))
    nearest = np.sort(np.partition(squares, last - 1, axis=1)[:, :last], axis=1)[:, skip:]
    return np.asarray(np.sqrt(np.maximum(nearest, 0)).mean(1), np.float32)


def _put(
    parts: list[Part], earlier: int, part: Part, apart: Callable[[NDArray[np.int64], NDArray[np.int64]], bool]
) -> None:
    """Put a part beside the others, or into the one of the earlier ones that it is more of."""
    resembles, rows = part
    for place, (name, before) in enumerate(parts[:earlier]):
        if name == resembles and (name is not None or not apart(_some(before), _some(rows))):
            parts[place] = name, np.concatenate([before, rows])
            return
    parts.append(part)


def _some(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[:: -(-len(rows) // _COMPARED)]
