"""The view of a cluster: its members on record that still wait and that no later edit took.

A cluster that a person made has its members alone. Of several such clusters that hold an item, the newest
shows it, so an undo only takes a layer away.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from memory.declarations import sum_up, waiting_declarations
from memory.records import CLUSTER_ID_LENGTH, CLUSTER_LETTERS, ClusterView, EditEntry, ShiftAlarm
from memory.rows import rows_among, utc_time
from memory.schema import alarms, clusters, edits, exemplars, labelled, labels
from memory.store import ExemplarMemoryError, Store


def names_of(members: Sequence[str]) -> Iterator[str]:
    """Yield names for a cluster, which follow from its members alone: six characters to type.

    The first is to be taken, or the next where other members already bear it.
    """
    for turn in count():
        text = "\n".join([*sorted(members), *([str(turn)] if turn else [])])
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        base = len(CLUSTER_LETTERS)
        yield "".join(CLUSTER_LETTERS[number // base**place % base] for place in range(CLUSTER_ID_LENGTH))


_VERSION = re.compile(r"(\d{1,9})(-[0-9a-f]{8})?")


class UnknownClusterError(ExemplarMemoryError):
    """Fatal for the request: no such cluster is in the list, or was in the last day."""


class ClusterChangedError(ExemplarMemoryError):
    """Fatal for the request: the cluster is not as its sender saw it; the text names the last act."""


def waiting(connection: Connection) -> dict[str, str]:
    """Return the sources of all exemplars that wait for a person, by their ids."""
    columns = select(exemplars.c.id, exemplars.c.source)
    rows = connection.execute(columns.where(exemplars.c.shelf == "unknown"))
    assert rows.cursor is not None
    # As the driver has them: each view of a cluster asks, and a row object for each takes twice as long.
    return dict(rows.cursor.fetchall())


def owners(connection: Connection) -> dict[str, str]:
    """Return for each exemplar that an edit put somewhere the cluster that shows it."""
    made = select(clusters.c.id, clusters.c.members).where(clusters.c.edit.is_not(None))
    return {
        member: row.id
        for row in connection.execute(made.order_by(clusters.c.edit))
        for member in json.loads(row.members)
    }


def all_clusters(connection: Connection) -> list[ClusterView]:
    """Return the clusters with waiting members.

    Suspects of the newest alarm come first, then what people made, the newest first, then the list as it was
    computed: the largest new ones first, the unclustered last.
    """
    rows = select(clusters)
    parts = [
        rows.where(clusters.c.alarm.is_not(None)).order_by(clusters.c.alarm.desc()),
        rows.where(clusters.c.edit.is_not(None)).order_by(clusters.c.edit.desc()),
        rows.where(clusters.c.place.is_not(None)).order_by(clusters.c.place),
    ]
    waits, owner, declared = waiting(connection), owners(connection), waiting_declarations(connection)
    known = select(alarms.c.id, alarms.c.evidence).where(alarms.c.evidence.is_not(None))
    evidence = {row.id: ShiftAlarm.model_validate_json(row.evidence) for row in connection.execute(known)}
    views = [
        _cluster_view(row, waits, owner, declared, evidence.get(row.alarm))
        for part in parts
        for row in connection.execute(part)
    ]
    return [cluster for cluster in views if cluster.members]


def load_cluster(connection: Connection, name: str) -> ClusterView:
    """Return the cluster of that name, also where nothing of it waits. Raises UnknownClusterError."""
    declared = waiting_declarations(connection)
    return _cluster_view(_row(connection, name), waiting(connection), owners(connection), declared)


def members_at_version(connection: Connection, name: str, version: str | None) -> list[str]:
    """Return the members that were seen under that version and wait, without what joined since.

    Without a version, those that wait now. Raises UnknownClusterError, and ClusterChangedError where
    something left or came back since.
    """
    row = _row(connection, name)
    waits, owner = waiting(connection), owners(connection)
    if version is None:
        return list(_cluster_view(row, waits, owner, {}).members)
    form = _VERSION.fullmatch(version)
    recorded = json.loads(row.members)
    upto = recorded[: int(form[1])] if form else []
    members = _own(row, upto, waits, owner)
    if version != _version(upto, members):
        raise ClusterChangedError(
            f"cluster {name} has changed since you looked: {newest_act(connection, name)}; look at it again"
        )
    return members


def upsert_cluster(connection: Connection, members: Sequence[str], **values: object) -> str:
    """Write a cluster's row under the name that its members give, and return that name.

    A computed row of the same members is taken up again.
    """
    row = {"members": json.dumps(list(members)), **values}
    for name in names_of(members):
        held = connection.execute(select(clusters).where(clusters.c.id == name)).first()
        if held is None:
            connection.execute(insert(clusters).values(id=name, **row))
            return name
        if held.alarm is held.edit is None and set(json.loads(held.members)) == set(members):
            connection.execute(update(clusters).where(clusters.c.id == name).values(row))
            return name
    raise AssertionError("names have no end")


def _row(connection: Connection, name: str) -> Any:
    row = connection.execute(select(clusters).where(clusters.c.id == name)).first()
    if row is None:
        raise UnknownClusterError(f"there is no cluster {name}; list the clusters again")
    return row


def _cluster_view(
    row: Any,
    waits: Mapping[str, str],
    owner: Mapping[str, str],
    declared: Mapping[str, tuple[str | None, str]],
    alarm: ShiftAlarm | None = None,
) -> ClusterView:
    recorded = json.loads(row.members)
    members = _own(row, recorded, waits, owner)
    return ClusterView(
        id=row.id,
        members=tuple(members),
        version=_version(recorded, members),
        size=len(members),
        sources=len({waits[member] for member in members}),
        resembles=row.resembles,
        medoid=members[0] if members else "",
        spread=row.spread,
        unclustered=bool(row.unclustered),
        alarm=alarm,
        edit=row.edit,
        declared=sum_up([declared[member] for member in members if member in declared]),
    )


def _own(row: Any, recorded: Iterable[str], waits: Collection[str], owner: Mapping[str, str]) -> list[str]:
    if not owner:
        return [member for member in recorded if member in waits]
    mine = row.id if row.edit is not None else None
    return [member for member in recorded if member in waits and owner.get(member) == mine]


def _version(recorded: Collection[str], members: Collection[str]) -> str:
    if len(recorded) == len(members):
        return str(len(recorded))
    left = set(recorded).difference(members)
    digest = hashlib.sha256("\n".join(sorted(left)).encode()).hexdigest()[:8]
    return f"{len(recorded)}-{digest}"


def newest_act(connection: Connection, name: str) -> str:
    """Describe the last act of a person on any of a cluster's members. Raises UnknownClusterError."""
    members = json.loads(_row(connection, name).members)
    acts = [*_newest_label(connection, members), *_newest_edit(connection, members)]
    if not acts:
        return "some of its items are past their time"
    at_ms, actor, act = max(acts)
    return f"{actor} {act} at {utc_time(at_ms):%Y-%m-%d %H:%M:%S} UTC"


def _newest_label(connection: Connection, members: Sequence[str]) -> list[tuple[int, str, str]]:
    given = func.coalesce(labels.c.undoes, labels.c.id)
    per_label = select(labels.c.id, func.count()).join(labelled, labelled.c.label == given)
    per_label, held = per_label.group_by(labels.c.id), Counter[int]()
    for number, items in rows_among(connection, per_label, labelled.c.exemplar, members):
        held[number] += items
    if not held:
        return []
    row = connection.execute(select(labels).where(labels.c.id == max(held))).one()
    items = held[row.id]
    act = f"took back label {row.undoes} on {items} of its items"
    if row.what is not None:
        act = f"called {items} of its items {row.what} (label {row.id})"
    return [(row.at_ms, row.actor, act)]


def _newest_edit(connection: Connection, members: Sequence[str]) -> list[tuple[int, str, str]]:
    mine = set(members)
    newest = select(edits, clusters.c.members).join(clusters, clusters.c.id == edits.c.cluster)
    for row in connection.execute(newest.order_by(edits.c.id.desc())):
        if items := len(mine.intersection(json.loads(row.members))):
            act = f"took back edit {row.undoes}"
            if row.what is not None:
                act = f"put {items} of its items into cluster {row.cluster} ({row.what}, edit {row.id})"
            return [(row.at_ms, row.actor, act)]
    return []


def edit_history(store: Store, limit: int | None = None) -> list[EditEntry]:
    """Return every edit and undo, the newest first, at most `limit`. Raises StoreUnavailableError."""
    undoing = edits.alias("undoing")
    query = select(edits, undoing.c.id.label("undone_by"))
    query = query.outerjoin(undoing, undoing.c.undoes == edits.c.id).order_by(edits.c.id.desc()).limit(limit)
    with store.read() as connection:
        return [edit_of(row) for row in connection.execute(query)]


def edit_of(row: Any) -> EditEntry:
    read = {"edit": row.id, "at": utc_time(row.at_ms), "taken_from": json.loads(row.taken_from)}
    return EditEntry(**{"undone_by": None, **row._mapping, **read})
