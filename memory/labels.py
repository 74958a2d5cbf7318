"""Labels and their undo, each on record with actor and time."""

import re
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, update

from memory import acts
from memory.contradictions import in_words, same_bytes
from memory.records import IGNORE, Exemplar, LabelEntry, LabelledCount, SameBytes, Split, shelf_of, split_of
from memory.rows import exemplars_of, now_ms, utc_time
from memory.schema import exemplars, labelled, labels
from memory.store import ExemplarMemoryError, Store

_SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_SLUG = 64
UNDONE = select(labels.c.undoes).where(labels.c.undoes.is_not(None))
"""the numbers of the labels that were taken back"""
_RESERVED = frozenset({"unknown", "fake", "unclustered", "all"})


class LabelError(ExemplarMemoryError):
    """Fatal for the request: the label cannot be given or undone as asked; the text says why."""


def checked_name(name: str) -> str:
    """Return the name of a class (a family, real) or ignore, if it is a proper one.

    Lower-case letters, digits and single hyphens, beginning with a letter, 64 at most. Raises LabelError.
    """
    if not _SLUG.fullmatch(name) or len(name) > _LONGEST_SLUG:
        raise LabelError(
            f"{name!r} is no family name: lower-case letters, digits and single hyphens, "
            f"beginning with a letter, at most {_LONGEST_SLUG}"
        )
    if name in _RESERVED:
        raise LabelError(f"{name!r} means something else here; choose another family name")
    return name


def label(store: Store, ids: Sequence[str], name: str | None, actor: str, same: SameBytes = "refuse") -> int:
    """Call exemplars a family, real or ignore; return the label's number, by which it can be undone.

    All of them or none. Without a name each is called what its very bytes are called. Each goes to
    the shelf that its group's split says. Raises LabelError,
    UnknownExemplarError or StoreUnavailableError.
    """
    with store.write() as connection:
        return give(connection, ids, name, actor, same)


def give(
    connection: Connection,
    ids: Sequence[str],
    name: str | None,
    actor: str,
    same: SameBytes,
    about: str | None = None,
    looked_at: int | None = None,
) -> int:
    """Put a label on record, and beside it one for each class that the same bytes keep; return its number.

    about: what the acts are about, by default the label.
    """
    parts = {} if name is None else {checked_name(name): list(ids)}
    conflicts = [] if same == "refuse" else same_bytes(connection, ids, name)
    if same == "relabel" and name is not None:
        parts[name] += dict.fromkeys(other for _, other, _ in conflicts)
    else:
        kept = {own: called for own, _, called in conflicts}
        parts = {family: [id_ for id_ in mine if id_ not in kept] for family, mine in parts.items()}
        for own, called in kept.items():
            parts.setdefault(called, []).append(own)
    numbers = []
    for family, mine in parts.items():
        if mine:
            numbers.append(number := open_label(connection, family, actor, looked_at))
            extend_label(connection, number, mine)
            seen = {} if about is None else {"looked_at": looked_at}
            details = {"label": number, "what": family, **seen, **acts.as_fields(mine)}
            acts.append(connection, actor, "label", about or f"label {number}", details)
    if numbers:
        return numbers[0]
    raise LabelError("there is nothing to label")


def open_label(connection: Connection, name: str, actor: str, looked_at: int | None = None) -> int:
    """Begin a label that `extend_label` gives to exemplars; return its number. Raises LabelError.

    looked_at counts those that its giver saw.
    """
    return _append(connection, actor, what=checked_name(name), looked_at=looked_at)


def reopen_label(connection: Connection, number: int, name: str, actor: str) -> None:
    """See that a label may be given to more exemplars: it says `name`, it is the actor's, and it stands.

    Raises LabelError.
    """
    row = connection.execute(select(labels.c.what, labels.c.actor).where(labels.c.id == number)).first()
    if row is None or (row.what, row.actor) != (name, actor):
        raise LabelError(f"label {number} is none that {actor} began for {name}")
    if connection.execute(select(labels.c.id).where(labels.c.undoes == number)).first():
        raise LabelError(f"label {number} was undone: begin the import again")


def extend_label(connection: Connection, number: int, ids: Sequence[str]) -> None:
    """Give a begun label to more exemplars. Raises LabelError or UnknownExemplarError."""
    name = connection.execute(select(labels.c.what).where(labels.c.id == number)).scalar_one()
    before = exemplars_of(connection, list(dict.fromkeys(ids)))
    gone = [e for e in before if e.crops_digest is None]
    if gone:
        raise LabelError(f"{gone[0].id} cannot be labelled any more: its crops were purged")
    if clash := in_words(same_bytes(connection, [e.id for e in before], name), name):
        raise LabelError(
            f"the same bytes would be called two classes, {clash}: nothing was labelled. Say whether these"
            " keep the labels that their bytes have, or the others are relabelled (`--same-bytes`)"
        )
    splits: list[Split] = [split_of(e.group) for e in before]
    was = ({f"{name}_before": getattr(e, name) for name in ("shelf", "family", "split")} for e in before)
    kept = [{"label": number, "exemplar": e.id} | of for e, of in zip(before, was, strict=True)]
    connection.execute(insert(labelled), kept)
    named = None if name == IGNORE else name
    places = zip(before, splits, strict=True)
    _place(connection, [(e, shelf_of(name, split), named, named and split) for e, split in places])


def undo(store: Store, number: int, actor: str) -> int:
    """Undo a label: its exemplars return to their earlier state; return the undo's own number.

    Exemplars whose crops were purged since stay dropped. Raises LabelError where the label is not
    there, is an undo, was undone, or where a later label holds one of its exemplars;
    StoreUnavailableError.
    """
    with store.write() as connection:
        label = connection.execute(select(labels).where(labels.c.id == number)).first()
        if label is None or label.undoes is not None:
            raise LabelError(f"there is no label {number} to undo")
        if connection.execute(select(labels.c.id).where(labels.c.undoes == number)).first():
            raise LabelError(f"label {number} is undone already")
        _refuse_if_labelled_later(connection, number)
        given = connection.execute(select(labelled).where(labelled.c.label == number))
        items = {row.exemplar: row for row in given}
        now = exemplars_of(connection, list(items))
        undoing = _append(connection, actor, undoes=number)
        was = [(e, items[e.id]) for e in now]
        shelves = ["dropped" if e.crops_digest is None else before.shelf_before for e, before in was]
        back = zip(was, shelves, strict=True)
        _place(connection, [(e, shelf, to.family_before, to.split_before) for (e, to), shelf in back])
        details = {"label": undoing, "undoes": number, **acts.as_fields(items)}
        acts.append(connection, actor, "undo", f"label {number}", details)
    return undoing


def history(store: Store) -> list[LabelEntry]:
    """Return every label and undo, the newest first. Raises StoreUnavailableError."""
    undoing = labels.alias("undoing")
    held = select(labelled.c.label, func.count().label("n")).group_by(labelled.c.label).subquery()
    query = (
        select(labels, undoing.c.id.label("undone_by"), func.coalesce(held.c.n, 0).label("exemplars"))
        .outerjoin(undoing, undoing.c.undoes == labels.c.id)
        .outerjoin(held, held.c.label == func.coalesce(labels.c.undoes, labels.c.id))
        .order_by(labels.c.id.desc())
    )
    with store.read() as connection:
        rows = connection.execute(query)
        return [LabelEntry(**row._mapping, label=row.id, at=utc_time(row.at_ms)) for row in rows]


def standing_labels(connection: Connection) -> dict[str, int]:
    """Return the number of the label that each labelled exemplar bears, by id: the newest not undone."""
    query = select(labelled.c.exemplar, func.max(labelled.c.label)).where(labelled.c.label.not_in(UNDONE))
    return dict(connection.execute(query.group_by(labelled.c.exemplar)).all())


def labels_by(connection: Connection, actor: str) -> list[int]:
    """Return the numbers of the labels that an actor gave."""
    return list(connection.scalars(select(labels.c.id).where(labels.c.actor == actor)))


def labels_of(connection: Connection, of: ColumnElement[bool]) -> dict[int, int]:
    """Return the labels that some exemplars bear or bore: how many of these each holds, by its number."""
    query = select(labelled.c.label, func.count()).join(exemplars).where(of).group_by(labelled.c.label)
    return dict(connection.execute(query).all())


def labelled_counts(connection: Connection) -> list[LabelledCount]:
    """Return the counts of everything that bears a person's label, by class, source and split."""
    columns = (exemplars.c.family, exemplars.c.source, exemplars.c.split)
    query = (
        select(*columns, func.count(), func.count(exemplars.c.group.distinct()))
        .where(exemplars.c.split.is_not(None), exemplars.c.crops_digest.is_not(None))
        .group_by(*columns)
        .order_by(*columns)
    )
    return [LabelledCount(*row) for row in connection.execute(query)]


def _append(connection: Connection, actor: str, **row: object) -> int:
    if not actor.strip():
        raise LabelError("a label needs the name of the person who gives it")
    added = insert(labels).values(**row, at_ms=now_ms(), actor=actor.strip()[:200]).returning(labels.c.id)
    return int(connection.execute(added).scalar_one())


def _refuse_if_labelled_later(connection: Connection, number: int) -> None:
    mine = select(labelled.c.exemplar).where(labelled.c.label == number)
    later = (
        select(labelled.c.label)
        .where(labelled.c.label > number, labelled.c.exemplar.in_(mine), labelled.c.label.not_in(UNDONE))
        .order_by(labelled.c.label.desc())
    )
    newest = connection.execute(later).first()
    if newest is not None:
        raise LabelError(f"label {newest.label} came later on some of the same items: undo that one first")


def _place(connection: Connection, places: Sequence[tuple[Exemplar, str, str | None, str | None]]) -> None:
    if not places:
        return
    statement = (
        update(exemplars)
        .where(exemplars.c.id == bindparam("exemplar"))
        .values(shelf=bindparam("to_shelf"), family=bindparam("to_family"), split=bindparam("to_split"))
    )
    names = ("to_shelf", "to_family", "to_split")
    rows = [{"exemplar": e.id, **dict(zip(names, to, strict=True))} for e, *to in places]
    connection.execute(statement, rows)
