"""Labels that contradict an earlier one: the same bytes, or near-duplicates, called two classes."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, select

from memory.records import IGNORE
from memory.rows import batches
from memory.schema import exemplars


def same_media(connection: Connection, ids: Sequence[str], what: str) -> str | None:
    """Return, in words, that an exemplar of the very bytes of these is called another class; else None."""
    return _told(connection, ids, what, _MINE.c.media_digest == _OTHER.c.media_digest)


def near_duplicates(connection: Connection, ids: Sequence[str], what: str) -> list[str]:
    """Return one line where near-duplicates of these, of other bytes, are called another class; else none.

    That may be right: a forgery resembles its original. A group that a folder names is not looked at, since
    it holds a photograph and its forgeries on purpose; one of near-duplicates has its first exemplar's id.
    """
    near = (_MINE.c.group == _OTHER.c.group) & (_MINE.c.media_digest != _OTHER.c.media_digest)
    of_likeness = select(_FIRST.c.id).where(_FIRST.c.id == _MINE.c.group).exists()
    found = _told(connection, ids, what, near & of_likeness)
    fix = "where one is wrong: forgewatch label ID FAMILY"
    return [f"near-duplicates are called two classes, {found}; {fix}"] if found else []


_MINE, _OTHER, _FIRST = exemplars.alias("mine"), exemplars.alias("other"), exemplars.alias("first")


def _told(connection: Connection, ids: Sequence[str], what: str, alike: ColumnElement[bool]) -> str | None:
    if what == IGNORE:
        return None
    mine, found = set(ids), []
    for some in batches(sorted(mine)):
        query = (
            select(_MINE.c.id, _OTHER.c.id, _OTHER.c.family)
            .select_from(_MINE)
            .join(_OTHER, alike)
            .where(_MINE.c.id.in_(some), _OTHER.c.family != what)
            # What is purged can be called nothing else any more.
            .where(_OTHER.c.crops_digest.is_not(None))
        )
        rows = connection.execute(query.order_by(_MINE.c.id, _OTHER.c.id))
        found += [(own, other, called) for own, other, called in rows if other not in mine]
    if not found:
        return None
    own, other, called = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{own} ({what}) and {other} ({called}){more}"
