"""Where an exemplar lies: the split of a group, the shelf of a label, the budget, what is purged."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from detector.architecture import FEATURE_VERSION
from memory.crop_store import CropStore
from memory.herding import herd, shares
from memory.records import Exemplar, Shelf, Split
from memory.rows import (
    crops_in_use,
    drop,
    select_exemplars,
    select_features,
)
from memory.scaling import Scaling
from memory.schema import exemplars
from memory.store import Store

TRAIN_SHARE, CALIBRATION_SHARE = 0.6, 0.2
IGNORE = "ignore"


@dataclass(frozen=True)
class Budgeted:
    """What a budget did: exemplars kept and dropped on the rehearsal shelf, by family."""

    kept: Mapping[str, int]
    dropped: Mapping[str, int]


def split_of(group: str) -> Split:
    """Return the side on which a group lies for ever: 60 % train, 20 % calibration, 20 % test.

    By SHA-256 of its name, so that no state and no order of arrival has a say.
    """
    share = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8]) / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "calibration" if share < TRAIN_SHARE + CALIBRATION_SHARE else "test"


def shelf_of(what: str, split: Split) -> Shelf:
    """Return the shelf of an exemplar labelled `what` (a family, real or ignore)."""
    if what == IGNORE:
        return "ignored"
    return "rehearsal" if split == "train" else "held-back"


def apply_budget(store: Store, crops: CropStore, budget: int, max_per_source: int) -> Budgeted:
    """Herd the rehearsal shelf down to at most `budget` exemplars, and delete the crops of the rest.

    Each class (real is one) gets budget // classes places, filled in herding order; of one source
    at most max_per_source. Exemplars whose features are not of FEATURE_VERSION cannot be compared:
    they are neither counted nor dropped. Raises StoreUnavailableError or CropsUnavailableError.
    """
    with store.read() as connection:
        shelf = select_exemplars(connection, shelf="rehearsal", feature_version=FEATURE_VERSION)
        matrix = _features(connection, shelf)
    by_family: dict[str, list[int]] = {}
    for i, exemplar in enumerate(shelf):
        by_family.setdefault(str(exemplar.family), []).append(i)
    places = shares({family: len(rows) for family, rows in by_family.items()}, budget)
    kept: dict[str, int] = {}
    out: list[str] = []
    for family, rows in by_family.items():
        sources = [shelf[i].source for i in rows]
        chosen = set(herd(matrix[rows], places[family], sources, max_per_source).tolist())
        kept[family] = len(chosen)
        out += [shelf[i].id for n, i in enumerate(rows) if n not in chosen]
    _drop(store, crops, out, shelf="rehearsal")
    return Budgeted(kept, {family: len(rows) - kept[family] for family, rows in by_family.items()})


def purge_expired(store: Store, crops: CropStore, before_ms: int) -> int:
    """Drop the unlabelled and ignored exemplars received before a time; return how many.

    Their crops are gone from the crop store on return. Raises StoreUnavailableError or
    CropsUnavailableError.
    """
    old = (exemplars.c.received_ms < before_ms) & exemplars.c.shelf.in_(("unknown", "ignored"))
    with store.read() as connection:
        ids = list(connection.scalars(select(exemplars.c.id).where(old)))
    _drop(store, crops, ids, shelf=None)
    return len(ids)


def sweep(store: Store, crops: CropStore) -> int:
    """Delete crops that no row points to: what a crash left between a crop and its row. Return how many.

    Raises StoreUnavailableError or CropsUnavailableError.
    """
    stored = list(crops.digests())
    with store.read() as connection:
        orphans = set(stored) - crops_in_use(connection, stored)
    return _delete_unused(store, crops, orphans) if orphans else 0


def _drop(store: Store, crops: CropStore, ids: Sequence[str], shelf: Shelf | None) -> None:
    if not ids:
        return
    with store.write() as connection:
        # A person may have labelled some of them since they were read: those stay.
        query = select(exemplars.c.id).where(
            exemplars.c.shelf == shelf if shelf else exemplars.c.shelf.in_(("unknown", "ignored"))
        )
        still = set(connection.scalars(query))
        digests = drop(connection, [i for i in ids if i in still])
    # Rows first: a crash in between leaves crops without a row, which `sweep` finds, and never a
    # row without its crops.
    _delete_unused(store, crops, digests)


def _delete_unused(store: Store, crops: CropStore, digests: set[str]) -> int:
    # Inside the writers' queue, where no one can be about to point to them: `remember` looks for
    # its crops again in its own transaction.
    with store.write() as connection:
        unused = digests - crops_in_use(connection, digests)
        for digest in unused:
            crops.delete(digest)
    return len(unused)


def _features(connection: Connection, shelf: Sequence[Exemplar]) -> NDArray[np.float32]:
    """Return the shelf's robustly scaled features, float32 (n, F)."""
    if not shelf:
        return np.zeros((0, 0), np.float32)
    raw = select_features(connection, FEATURE_VERSION, ids=[e.id for e in shelf]).matrix
    return Scaling.fit(raw).apply(raw)
