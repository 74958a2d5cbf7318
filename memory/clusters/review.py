"""What a person is shown of the unknown shelf: the list of its clusters, one of them, its sheet."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, func, select

from memory.alarms import evidence_of
from memory.crops.contact_sheet import Tile, contact_sheet
from memory.crops.crop_store import CropStore
from memory.records import Exemplar, ShiftAlarm
from memory.rows import exemplars_of
from memory.schema import clustering, clusters, exemplars
from memory.store import ExemplarMemoryError, Store


class UnknownClusterError(ExemplarMemoryError):
    """Fatal for the request: no such cluster is in the list, or was in the last day."""


@dataclass(frozen=True)
class Listed:
    """A cluster of the list. members: those that still wait for a label, nearest to the medoid first.

    spread, resembles and unclustered are `Cluster`'s, of all members. alarm: what is known of
    a source whose suspects these are; else None.
    """

    id: str
    members: tuple[str, ...]
    spread: float
    resembles: str | None
    unclustered: bool
    alarm: ShiftAlarm | None = None


@dataclass(frozen=True)
class Freshness:
    """How fresh the list is. computed_at: None before the first; newer: unknowns that came since."""

    computed_at: datetime | None
    newer: int


def list_clusters(store: Store) -> list[Listed]:
    """Return the clusters of which something still waits.

    Suspects of the newest alarm come first, then the largest new clusters, the unclustered last.

    Raises StoreUnavailableError.
    """
    with store.read() as connection:
        computed = select(clusters).where(clusters.c.place.is_not(None)).order_by(clusters.c.place)
        suspects = select(clusters).where(clusters.c.alarm.is_not(None)).order_by(clusters.c.alarm.desc())
        rows = [*connection.execute(suspects), *connection.execute(computed)]
        alarms = evidence_of(connection, [row.alarm for row in rows if row.alarm is not None])
        waiting = set(connection.scalars(select(exemplars.c.id).where(exemplars.c.shelf == "unknown")))
    found = [
        Listed(
            id=row.id,
            members=tuple(member for member in json.loads(row.members) if member in waiting),
            spread=row.spread,
            resembles=row.resembles,
            unclustered=row.unclustered,
            alarm=alarms.get(row.alarm),
        )
        for row in rows
    ]
    return [one for one in found if one.members]


def freshness(store: Store) -> Freshness:
    """Return how fresh the list of clusters is. Raises StoreUnavailableError."""
    with store.read() as connection:
        row = connection.execute(select(clustering)).first()
        newer = _unknowns_after(connection, -1 if row is None else row.revision)
    computed_at = None if row is None else datetime.fromtimestamp(row.computed_ms / 1000, UTC)
    return Freshness(computed_at, newer)


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


def _unknowns_after(connection: Connection, revision: int) -> int:
    newer = select(func.count()).where(exemplars.c.shelf == "unknown", exemplars.c.revision > revision)
    return connection.scalar(newer) or 0
