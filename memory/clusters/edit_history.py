"""The history of what people did to clusters; apart from the edits, which take scikit-learn."""

import json
from dataclasses import dataclass

from sqlalchemy import select

from memory.schema import edits
from memory.store import Store


@dataclass(frozen=True)
class Edit:
    """One line of the edits' history. what is split or merge, None for an undo.

    cluster is the one that it made, or in an undo the one that is no more; taken_from are those that its
    items were in; undone_by is the edit that undid this one.
    """

    id: int
    at_ms: int
    actor: str
    what: str | None
    cluster: str
    taken_from: tuple[str, ...]
    items: int
    undoes: int | None
    undone_by: int | None


def edit_history(store: Store, limit: int | None = None) -> list[Edit]:
    """Return every edit and undo, the newest first, at most `limit`. Raises StoreUnavailableError."""
    undoing = edits.alias("undoing")
    query = select(edits, undoing.c.id.label("undone_by"))
    query = query.outerjoin(undoing, undoing.c.undoes == edits.c.id).order_by(edits.c.id.desc()).limit(limit)
    with store.read() as connection:
        return [
            Edit(**{**row._mapping, "taken_from": tuple(json.loads(row.taken_from))})
            for row in connection.execute(query)
        ]
