"""What a person is shown of the unknown shelf: its clusters, the sheet of one, what is like an item."""

import json

from sqlalchemy import Connection, delete, insert, select

from memory.clusters import Cluster, cluster
from memory.contact_sheet import Tile, contact_sheet
from memory.crop_store import CropStore
from memory.records import Exemplar
from memory.rows import exemplars_of, now_ms, select_features
from memory.schema import clusters, exemplars
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError, Store

_KEPT_MS = 7 * 24 * 3600 * 1000


class UnknownClusterError(ExemplarMemoryError):
    """Fatal for the request: nothing was shown under this name in the last seven days."""


def find_clusters(store: Store, settings: MemorySettings) -> list[Cluster]:
    """Cluster the newest unknowns, and keep on record what is shown under each cluster's name.

    Takes several seconds for 500. Raises StoreUnavailableError.
    """
    with store.read() as connection:
        version = _newest_version(connection)
        if version is None:
            return []
        waiting = _ids(connection, version, labelled=False)[: settings.max_clustered]
        taught = _ids(connection, version, labelled=True)
        unknown = select_features(connection, version, ids=waiting)
        known = select_features(connection, version, ids=taught)
        classes = [str(e.family) for e in exemplars_of(connection, taught)]
    found = cluster(
        unknown.ids,
        unknown.matrix,
        known.matrix,
        classes,
        settings.min_cluster_items,
    )
    _put_on_record(store, found)
    return found


def members_of(store: Store, name: str) -> list[Exemplar]:
    """Return what was shown under a cluster's name and still waits for a label, in the order shown.

    Items that arrived since are not among them, so a label means what its giver saw. Raises
    UnknownClusterError or StoreUnavailableError.
    """
    with store.read() as connection:
        shown = connection.scalar(select(clusters.c.members).where(clusters.c.id == name))
        if shown is None:
            raise UnknownClusterError(f"there is no cluster {name}; list the clusters again")
        members = exemplars_of(connection, json.loads(shown))
    return [e for e in members if e.shelf == "unknown"]


def cluster_sheet(store: Store, crops: CropStore, name: str, most: int = 24) -> bytes:
    """Return a PNG of the first crops of a cluster's members, nearest to the medoid first.

    Raises UnknownClusterError, StoreUnavailableError, CropsMissingError, CropsDamagedError or
    CropsUnavailableError.
    """
    members = [e for e in members_of(store, name) if e.crops_digest is not None]
    tiles = [
        Tile(
            crop=crops.load(str(e.crops_digest))[0],
            caption=e.id,
            note="" if e.unknown_score is None else f"unknown score {e.unknown_score:.2f}",
        )
        for e in members[:most]
    ]
    return contact_sheet(f"cluster {name}: {len(tiles)} of {len(members)} unknown items", tiles)


def _put_on_record(store: Store, found: list[Cluster]) -> None:
    now = now_ms()
    rows = {c.id: {"id": c.id, "shown_ms": now, "members": json.dumps(c.members)} for c in found}
    with store.read() as connection:
        query = select(clusters.c.id, clusters.c.members).where(clusters.c.shown_ms > now - _KEPT_MS // 2)
        for name, members in connection.execute(query):
            if name in rows and rows[name]["members"] == members:
                del rows[name]
    if not rows:
        return
    with store.write() as connection:
        old = clusters.c.shown_ms < now - _KEPT_MS
        connection.execute(delete(clusters).where(clusters.c.id.in_(list(rows)) | old))
        connection.execute(insert(clusters), list(rows.values()))


def _newest_version(connection: Connection) -> str | None:
    query = select(exemplars.c.feature_version).where(exemplars.c.shelf == "unknown")
    version: str | None = connection.scalar(query.order_by(exemplars.c.revision.desc()).limit(1))
    return version


def _ids(connection: Connection, version: str, *, labelled: bool) -> list[str]:
    query = select(exemplars.c.id).where(
        exemplars.c.feature_version == version,
        exemplars.c.family.is_not(None) if labelled else exemplars.c.shelf == "unknown",
    )
    return list(connection.scalars(query.order_by(exemplars.c.revision.desc(), exemplars.c.id)))
