"""Clusters that people make: split off, merged, and taken back; each on record with who and when."""

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
from sqlalchemy import Connection, insert, select, update

from memory import acts
from memory.clusters.clusters import describe
from memory.clusters.views import edit_of, members_at_version, upsert_cluster
from memory.features import Scaling
from memory.records import EditEntry
from memory.rows import now_ms, rows_among, select_features
from memory.schema import clusters, edits, exemplars
from memory.store import ExemplarMemoryError, Store


class EditError(ExemplarMemoryError):
    """Fatal for the request: a cluster cannot be edited, or an edit undone, as asked; the text says why."""


def split(store: Store, name: str, ids: Sequence[str], actor: str, version: str | None = None) -> EditEntry:
    """Make some of a cluster's members a cluster of their own.

    The others stay as they are until the list is computed anew. Raises EditError, ClusterChangedError,
    UnknownClusterError or StoreUnavailableError.
    """
    chosen = list(dict.fromkeys(ids))
    with store.read() as connection:
        _check_part(connection, name, chosen, version)
        ranked = _rank_members(connection, chosen)
    with store.write() as connection:
        _check_part(connection, name, chosen, version)
        return _put(connection, ranked, actor, "split", [name])


def merge(store: Store, parts: Sequence[tuple[str, str | None]], actor: str) -> EditEntry:
    """Make one cluster of several, each given by its name and the version that was seen.

    Raises EditError, ClusterChangedError, UnknownClusterError or StoreUnavailableError.
    """
    names = [name for name, _ in parts]
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise EditError("give two or more clusters to merge, each once")
    with store.read() as connection:
        members = _all_of(connection, parts)
        ranked = _rank_members(connection, members)
    with store.write() as connection:
        if _all_of(connection, parts) != members:
            raise EditError("the clusters changed meanwhile: look at them again")
        return _put(connection, ranked, actor, "merge", names)


def undo_edit(store: Store, number: int, actor: str) -> EditEntry:
    """Put the items of an edit's cluster back where they were before it; return the undo.

    What joined the cluster since goes back to what waits, and is clustered anew. Raises EditError where the
    edit is not there, is an undo, was undone, or where a later edit holds some of its items;
    StoreUnavailableError.
    """
    with store.write() as connection:
        row = connection.execute(select(edits).where(edits.c.id == number)).first()
        if row is None or row.undoes is not None:
            raise EditError(f"there is no edit {number} to undo")
        if by := connection.execute(select(edits).where(edits.c.undoes == number)).first():
            raise EditError(f"edit {number} is undone already, by {by.actor}")
        held = select(clusters.c.members).where(clusters.c.id == row.cluster, clusters.c.edit == number)
        members = connection.scalar(held)
        if members is None:
            raise EditError(f"edit {number} is over: nothing of its cluster has waited for a day")
        if later := _later(connection, number, json.loads(members)):
            raise EditError(f"edit {later} came later on some of the same items: undo that one first")
        left = {"edit": None, "shown_ms": now_ms()}
        connection.execute(update(clusters).where(clusters.c.id == row.cluster).values(left))
        taken_from = json.loads(row.taken_from)
        acts.append(connection, actor, "undo", f"edit {number}", {"cluster": row.cluster})
        edit = {"actor": actor, "cluster": row.cluster, "items": row.items, "undoes": number}
        return _append(connection, taken_from, **edit)


def _check_part(connection: Connection, cluster: str, ids: Sequence[str], version: str | None) -> None:
    members = set(members_at_version(connection, cluster, version))
    if strange := [i for i in ids if i not in members]:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise EditError(f"{strange[0]}{more} is not in cluster {cluster}, or waits no more")
    if not ids:
        raise EditError(f"nothing of cluster {cluster} is selected")
    if len(ids) == len(members):
        raise EditError(f"that is all of cluster {cluster}: nothing would be left to split it from")


def _all_of(connection: Connection, parts: Sequence[tuple[str, str | None]]) -> list[str]:
    members: list[str] = []
    for name, version in parts:
        some = members_at_version(connection, name, version)
        if not some:
            raise EditError(f"nothing of cluster {name} waits any more")
        members += some
    return list(dict.fromkeys(members))


def _rank_members(connection: Connection, ids: Sequence[str]) -> tuple[list[str], float]:
    """Return items as a cluster lists them, the most typical first, and its spread.

    Items of another feature version than most come last.
    """
    query = select(exemplars.c.id, exemplars.c.feature_version)
    versions = dict(rows_among(connection, query, exemplars.c.id, ids))
    ((version, _),) = Counter(versions.values()).most_common(1)
    raw = select_features(connection, version, [i for i in ids if versions[i] == version])
    described = describe(raw.ids, Scaling.fit(raw.matrix).apply(raw.matrix), np.arange(len(raw.ids)), None)
    return [*described.members, *(i for i in ids if versions[i] != version)], described.spread


def _put(
    connection: Connection, ranked: tuple[list[str], float], actor: str, kind: str, taken_from: Sequence[str]
) -> EditEntry:
    members, spread = ranked
    done = _append(connection, taken_from, actor=actor, what=kind, cluster="", items=len(members))
    values = {"shown_ms": now_ms(), "place": None, "resembles": None, "unclustered": False}
    name = upsert_cluster(connection, members, spread=spread, edit=done.edit, **values)
    connection.execute(update(edits).where(edits.c.id == done.edit).values(cluster=name))
    details = {"edit": done.edit, "taken_from": list(taken_from), **acts.as_fields(members)}
    acts.append(connection, actor, kind, f"cluster {name}", details)
    return done.model_copy(update={"cluster": name})


def _append(connection: Connection, taken_from: Sequence[str], **row: object) -> EditEntry:
    added = insert(edits).values(**row, at_ms=now_ms(), taken_from=json.dumps(list(taken_from)))
    return edit_of(connection.execute(added.returning(edits)).one())


def _later(connection: Connection, number: int, members: Sequence[str]) -> int | None:
    """Return the newest edit after this one whose cluster holds some of the same items."""
    newer = select(clusters.c.edit, clusters.c.members).where(clusters.c.edit > number)
    rows, mine = connection.execute(newer.order_by(clusters.c.edit.desc())), set(members)
    return next((int(row.edit) for row in rows if not mine.isdisjoint(json.loads(row.members))), None)
