"""Labels that contradict an earlier one: the same bytes, or near-duplicates, called two classes."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, select

from memory.records import IGNORE
from memory.rows import rows_among
from memory.schema import exemplars


def same_bytes(
    connection: Connection, ids: Sequence[str], name: str | None = None
) -> list[tuple[str, str, str]]:
    """Return which of these have the very bytes of another exemplar, which that is, and its other class.

    Without a name, of any class. Nothing contradicts ignore.
    """
    return _pairs(connection, ids, name, _MINE.c.media_digest == _OTHER.c.media_digest)


def contradicting(connection: Connection, ids: Sequence[str], name: str) -> set[str]:
    """Return those of ids of whose bytes or group another exemplar has another class."""
    group = _MINE.c.group == _OTHER.c.group
    alike = group | (_MINE.c.media_digest == _OTHER.c.media_digest)
    return {own for own, _, _ in _pairs(connection, ids, name, alike)}


def near_duplicates(connection: Connection, ids: Sequence[str], name: str) -> list[str]:
    """Return one line where near-duplicates of these, of other bytes, are called another class; else none.

    That may be right: a forgery resembles its original. A group that a folder names is not looked at, since
    it holds a photograph and its forgeries on purpose; one of near-duplicates has its first exemplar's id.
    """
    near = (_MINE.c.group == _OTHER.c.group) & (_MINE.c.media_digest != _OTHER.c.media_digest)
    of_likeness = select(_FIRST.c.id).where(_FIRST.c.id == _MINE.c.group).exists()
    sentences = in_words(_pairs(connection, ids, name, near & of_likeness), name)
    fix = "where one is wrong: forgewatch label ID FAMILY"
    return [f"near-duplicates are called two classes, {sentences}; {fix}"] if sentences else []


_MINE, _OTHER, _FIRST = exemplars.alias("mine"), exemplars.alias("other"), exemplars.alias("first")


def in_words(pairs: Sequence[tuple[str, str, str]], name: str) -> str:
    """Return the first of some pairs and the number of the others; empty where there is none."""
    more = f", and {len(pairs) - 1} more" if len(pairs) > 1 else ""
    return "".join(f"{own} ({name}) and {other} ({called}){more}" for own, other, called in pairs[:1])


def _pairs(
    connection: Connection, ids: Sequence[str], name: str | None, alike: ColumnElement[bool]
) -> list[tuple[str, str, str]]:
    if name == IGNORE:
        return []
    mine = set(ids)
    called_otherwise = _OTHER.c.family.is_not(None) if name is None else _OTHER.c.family != name
    query = (
        select(_MINE.c.id, _OTHER.c.id, _OTHER.c.family)
        .select_from(_MINE)
        .join(_OTHER, alike)
        # What is purged can be called nothing else any more.
        .where(called_otherwise, _OTHER.c.crops_digest.is_not(None))
        .order_by(_MINE.c.id, _OTHER.c.id)
    )
    rows = rows_among(connection, query, _MINE.c.id, sorted(mine))
    return [(own, other, called) for own, other, called in rows if other not in mine]
