"""Sources that are no longer remembered, by their exact name: their items are scored, and nothing is kept.

That is no defence against a producer, who may take another name.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, delete, insert, select

from memory import acts
from memory.records import BlockedEntry
from memory.rows import batches, now_ms, utc_time
from memory.schema import blocked, digest_of_source
from memory.store import ExemplarMemoryError


class SourceBlockedError(ExemplarMemoryError):
    """Fatal for the request: the source is blocked, or is not where it should be."""


def block(connection: Connection, source: str, actor: str) -> None:
    """Block a source; once more does nothing."""
    if not blocked_among(connection, [source]):
        row = {"digest": digest_of_source(source), "source": source, "at_ms": now_ms(), "actor": actor}
        connection.execute(insert(blocked), row)
        acts.append(connection, actor, "block source", source)


def unblock(connection: Connection, source: str, actor: str) -> None:
    """Remember a source again. Raises SourceBlockedError where it is not blocked."""
    if not connection.execute(delete(blocked).where(blocked.c.digest == digest_of_source(source))).rowcount:
        raise SourceBlockedError(f"the source {source!r} is not blocked (`forgewatch memory blocked`)")
    acts.append(connection, actor, "unblock source", source)


def blocked_among(connection: Connection, sources: Iterable[str]) -> set[str]:
    digests = {digest_of_source(source): source for source in sources}
    names = set()
    for some in batches(list(digests)):
        here = select(blocked.c.digest).where(blocked.c.digest.in_(some))
        names |= {digests[digest] for digest in connection.scalars(here)}
    return names


def list_blocked(connection: Connection) -> list[BlockedEntry]:
    """Return every blocked source, the newest first."""
    rows = connection.execute(select(blocked).order_by(blocked.c.at_ms.desc(), blocked.c.digest))
    return [BlockedEntry(**row._mapping, at=utc_time(row.at_ms)) for row in rows]
