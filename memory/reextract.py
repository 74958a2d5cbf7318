"""Exemplars of an older feature version get today's, computed anew from their stored crops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import select

from memory.crops.crop_store import CropsDamagedError, CropsMissingError, CropStore
from memory.features import FEATURE_VERSION, features_of
from memory.rows import feature_versions, renew_features
from memory.schema import exemplars
from memory.store import Store

_BATCH_ITEMS = 32
log = structlog.get_logger()


@dataclass(frozen=True)
class Reextracted:
    """How many exemplars got features of today's version, and how many keep those of an older one: their
    crops were purged, are damaged, or are too small."""

    renewed: int
    left_behind: int


def reextract(store: Store, crops: CropStore, stop: Event, beat: Callable[[str], None]) -> Reextracted:
    """Compute the features of every exemplar that is not of FEATURE_VERSION, a batch a transaction.

    They become the mean over the stored crops. beat is called before each batch. Ends early, between two
    batches, once stop is set; each row says its version, so the next call goes on from there. Rows that are
    left behind are in no index and, for want of crops, never trained on; the log counts them. Raises
    StoreUnavailableError or CropsUnavailableError.
    """
    waiting = _waiting(store)
    renewed = 0
    for start in range(0, len(waiting), _BATCH_ITEMS):
        if stop.is_set():
            break
        beat("features are computed anew")
        computed = _compute_features(crops, waiting[start : start + _BATCH_ITEMS])
        if computed:
            with store.write() as connection:
                renewed += renew_features(connection, computed, FEATURE_VERSION)
        done = min(start + _BATCH_ITEMS, len(waiting))
        log.info("features computed anew", version=FEATURE_VERSION, done=done, of=len(waiting))
    with store.read() as connection:
        versions = feature_versions(connection)
    left_behind = sum(count for version, count in versions.items() if version != FEATURE_VERSION)
    if left_behind:
        log.warning("exemplars of an older feature version are left out", exemplars=left_behind)
    return Reextracted(renewed, left_behind)


def _waiting(store: Store) -> list[tuple[str, str]]:
    """Return the ids of older exemplars with the digest of their crops, in the order of writing."""
    query = select(exemplars.c.id, exemplars.c.crops_digest).where(
        exemplars.c.feature_version != FEATURE_VERSION, exemplars.c.crops_digest.is_not(None)
    )
    with store.read() as connection:
        rows = connection.execute(query.order_by(exemplars.c.revision, exemplars.c.id))
        return [(row.id, row.crops_digest) for row in rows]


def _compute_features(crops: CropStore, items: Sequence[tuple[str, str]]) -> dict[str, NDArray[np.float32]]:
    """Return the features of those items whose crops can be read, by id."""
    features = {}
    for item, digest in items:
        try:
            features[item] = features_of(crops.load(digest))
        except (CropsMissingError, CropsDamagedError, ValueError) as error:
            log.error("features cannot be computed anew", exemplar=item, error=str(error))
    return features
