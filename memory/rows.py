"""Rows of the memory in and out of a transaction. Nothing here opens or ends one."""

import hashlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, func, insert, select, update

from memory.records import Exemplar, Shelf
from memory.schema import clusters, exemplars
from memory.store import ExemplarMemoryError, current_revision

_IDS_PER_STATEMENT, _ROWS_AT_ONCE = 500, 4096
_FLOATS = np.dtype("<f4")
Floats = NDArray[np.float32]
_RECORD = [exemplars.c[name] for name in Exemplar.model_fields if name != "received_at"]


class UnknownExemplarError(ExemplarMemoryError):
    """Fatal for the request: an id names no exemplar."""


@dataclass(frozen=True)
class NewRow:
    """A row to be written. features is raw float32 (F,), embedding float32 (D,) of the release's network."""

    exemplar: Exemplar
    crop_count: int
    features: NDArray[np.float32]
    feature_version: str
    embedding: NDArray[np.float32] | None
    verdict: str | None
    picture_hashes: bytes = b""


@dataclass(frozen=True)
class Features:
    """Raw forensic features of some exemplars, of one feature version.

    matrix is float32 (n, F), a row for each of ids; revision is the newest that they came from. Where asked
    for, dropped are ids of exemplars that have left, and picture_hashes those of each of ids.
    """

    ids: tuple[str, ...]
    matrix: NDArray[np.float32]
    revision: int
    dropped: frozenset[str] = frozenset()
    picture_hashes: tuple[bytes, ...] = ()


def insert_rows(connection: Connection, rows: Sequence[NewRow]) -> None:
    """Write rows whose ids are not there yet."""
    if not rows:
        return
    revision = current_revision(connection)
    connection.execute(insert(exemplars), [_values(row, revision) for row in rows])


def _values(row: NewRow, revision: int) -> dict[str, object]:
    record = row.exemplar.model_dump(exclude={"received_at"})
    return record | {
        "received_ms": round(row.exemplar.received_at.timestamp() * 1000),
        "crop_count": row.crop_count,
        "features": row.features.astype(_FLOATS).tobytes(),
        "feature_version": row.feature_version,
        "embedding": None if row.embedding is None else row.embedding.astype(_FLOATS).tobytes(),
        "verdict": row.verdict,
        "picture_hashes": row.picture_hashes or None,
        "revision": revision,
    }


def select_exemplars(connection: Connection, **wanted: str) -> list[Exemplar]:
    """Return the exemplars whose columns have the values given (`shelf`, `split`), the oldest first."""
    query = select(*_RECORD, exemplars.c.received_ms).filter_by(**wanted)
    query = query.order_by(exemplars.c.received_ms, exemplars.c.id)
    return [_exemplar(row) for row in connection.execute(query)]


def exemplars_of(connection: Connection, ids: Sequence[str]) -> list[Exemplar]:
    """Return the exemplars with these ids, in this order. Raises UnknownExemplarError."""
    columns = select(*_RECORD, exemplars.c.received_ms)
    rows = {row.id: row for row in rows_among(connection, columns, exemplars.c.id, ids)}
    missing = [i for i in ids if i not in rows]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UnknownExemplarError(f"there is no exemplar {missing[0]}{more}")
    return [_exemplar(rows[i]) for i in ids]


def media_of(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Return the media digest of each of ids that has a row."""
    columns = select(exemplars.c.id, exemplars.c.media_digest)
    return {row.id: row.media_digest for row in rows_among(connection, columns, exemplars.c.id, ids)}


def groups_by_media(connection: Connection, digests: Sequence[str]) -> dict[str, str]:
    """Return the group of each media digest that was seen before."""
    # The oldest row says it, whatever order the database returns them in.
    newest = exemplars.c.revision.desc(), exemplars.c.id.desc()
    query = select(exemplars.c.media_digest, exemplars.c.group).order_by(*newest)
    return dict(rows_among(connection, query, exemplars.c.media_digest, digests))


def select_features(connection: Connection, feature_version: str, ids: Sequence[str]) -> Features:
    """Return the raw features of one version of ids, in their order.

    Raises UnknownExemplarError where one of ids has no features of that version.
    """
    columns = select(exemplars.c.id, exemplars.c.features, exemplars.c.revision).where(
        exemplars.c.feature_version == feature_version
    )
    distinct = list(dict.fromkeys(ids))
    rows = {row.id: row for row in rows_among(connection, columns, exemplars.c.id, distinct)}
    if left := set(ids) - rows.keys():
        raise UnknownExemplarError(f"{min(left)} has no features of version {feature_version}")
    matrix = np.array([np.frombuffer(rows[i].features, _FLOATS) for i in ids], np.float32)
    newest = max((row.revision for row in rows.values()), default=-1)
    return Features(tuple(ids), matrix if len(ids) else np.zeros((0, 0), np.float32), newest)


def stream_features(connection: Connection, feature_version: str) -> Iterator[Features]:
    """Yield the raw features of all rows of one version but dropped ones, some at a time, as written."""
    yield from _stream(connection, feature_version, exemplars.c.shelf != "dropped")


def changed_features(connection: Connection, feature_version: str, after_revision: int) -> Iterator[Features]:
    """Yield the raw features that were written or dropped after a revision, some at a time, as written."""
    yield from _stream(connection, feature_version, exemplars.c.revision > after_revision)


def _stream(connection: Connection, feature_version: str, which: ColumnElement[bool]) -> Iterator[Features]:
    names = ("id", "features", "revision", "shelf", "picture_hashes")
    query = (
        select(*(exemplars.c[name] for name in names))
        .where(exemplars.c.feature_version == feature_version, which)
        .order_by(exemplars.c.revision, exemplars.c.id)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    for rows in connection.execute(query).partitions():
        live = [row for row in rows if row.shelf != "dropped"]
        matrix = np.frombuffer(b"".join(row.features for row in live), _FLOATS).astype(np.float32)
        yield Features(
            ids=tuple(row.id for row in live),
            matrix=matrix.reshape(len(live), -1) if live else np.zeros((0, 0), np.float32),
            revision=rows[-1].revision,
            dropped=frozenset(row.id for row in rows if row.shelf == "dropped"),
            picture_hashes=tuple(row.picture_hashes or b"" for row in live),
        )


def live_ids(connection: Connection, feature_version: str) -> list[str]:
    """Return the ids of all rows of one version but dropped ones, as written."""
    live = (exemplars.c.feature_version == feature_version) & (exemplars.c.shelf != "dropped")
    query = select(exemplars.c.id).where(live)
    return list(connection.scalars(query.order_by(exemplars.c.revision, exemplars.c.id)))


def newest_write(connection: Connection, feature_version: str, revision: int) -> str:
    """Return a token that identifies the write of a revision among those of its number, "" where none does.

    It is a digest over which rows of a version it wrote, and when they came.
    """
    written = (exemplars.c.feature_version == feature_version) & (exemplars.c.revision == revision)
    query = select(exemplars.c.id, exemplars.c.received_ms, exemplars.c.media_digest).where(written)
    rows = connection.execute(query.order_by(exemplars.c.id)).all()
    return hashlib.sha256(json.dumps([tuple(row) for row in rows]).encode()).hexdigest() if rows else ""


def renew_features(connection: Connection, computed: Mapping[str, Floats], feature_version: str) -> int:
    """Give exemplars of another feature version new raw features, float32 (F,) by id; return how many.

    They count as written by this transaction, so that an index takes them in.
    """
    values = {"feature_version": feature_version, "revision": current_revision(connection)}
    renewed = 0
    for exemplar, features in computed.items():
        outdated = (exemplars.c.id == exemplar) & (exemplars.c.feature_version != feature_version)
        row = values | {"features": features.astype(_FLOATS).tobytes()}
        renewed += connection.execute(update(exemplars).where(outdated).values(row)).rowcount
    return renewed


def feature_versions(connection: Connection) -> dict[str, int]:
    """Return how many rows there are of each feature version."""
    return count_by(connection, exemplars.c.feature_version)


def counts(connection: Connection) -> dict[tuple[Shelf, str | None], int]:
    """Return how many exemplars lie on each shelf of each family (None: unlabelled)."""
    query = select(exemplars.c.shelf, exemplars.c.family, func.count())
    rows = connection.execute(query.group_by(exemplars.c.shelf, exemplars.c.family))
    return {(shelf, family): n for shelf, family, n in rows}


def count_clusters(connection: Connection) -> int:
    """Return how many clusters are in the list, without the one of ungrouped items."""
    listed = clusters.c.place.is_not(None) & clusters.c.unclustered.is_not(True)
    return connection.scalar(select(func.count()).where(listed)) or 0


def count_alarms(connection: Connection) -> int:
    """Return how many alarms about shifted sources have a suspect that still waits for a person."""
    suspects = _clusters_of_alarms(connection)
    if not suspects:
        return 0  # as a rule, and every look at the metrics asks
    waiting = set(connection.scalars(select(exemplars.c.id).where(exemplars.c.shelf == "unknown")))
    return sum(bool(waiting.intersection(members)) for members in suspects)


def suspects_of_alarms(connection: Connection) -> set[str]:
    """Return the ids of all exemplars that were put before a person as suspects."""
    return {member for members in _clusters_of_alarms(connection) for member in members}


def _clusters_of_alarms(connection: Connection) -> list[list[str]]:
    lists = connection.scalars(select(clusters.c.members).where(clusters.c.alarm.is_not(None)))
    return [json.loads(members) for members in lists]


def crops_in_use(connection: Connection, digests: Collection[str]) -> set[str]:
    """Return those digests that a row still points to."""
    digest = exemplars.c.crops_digest
    return {row.crops_digest for row in rows_among(connection, select(digest), digest, list(digests))}


def drop(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Put exemplars on the dropped shelf, without crops; return the crops' digests they pointed to.

    They count as written by this transaction, so that an index lets go of them.
    """
    gone = {"shelf": "dropped", "crops_digest": None, "revision": current_revision(connection)}
    rows = rows_among(connection, select(exemplars.c.crops_digest), exemplars.c.id, ids)
    digests = {row.crops_digest for row in rows if row.crops_digest is not None}
    for some in batches(ids):
        connection.execute(update(exemplars).where(exemplars.c.id.in_(some)).values(gone))
    return digests


def now_ms() -> int:
    """Return the wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def utc_time(at_ms: int) -> datetime:
    """Return a moment, milliseconds since the epoch, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _exemplar(row: Any) -> Exemplar:
    values = dict(row._mapping)
    received_at = utc_time(values.pop("received_ms"))
    return Exemplar.model_validate(values | {"received_at": received_at})


def count_by(
    connection: Connection, column: ColumnElement[Any], *where: ColumnElement[bool]
) -> dict[Any, int]:
    """Return how many rows have each value of a column, of those that meet all conditions."""
    query = select(column, func.count()).where(*where).group_by(column)
    return dict(connection.execute(query).all())


def rows_among(
    connection: Connection, query: Select[Any], column: ColumnElement[Any], values: Sequence[str]
) -> Iterator[Any]:
    """Yield the rows of a query whose column has one of some values, in the order of `batches`."""
    for some in batches(values):
        yield from connection.execute(query.where(column.in_(some)))


def batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield values some at a time, for databases bound the number of parameters of one statement."""
    for start in range(0, len(values), _IDS_PER_STATEMENT):
        yield values[start : start + _IDS_PER_STATEMENT]
