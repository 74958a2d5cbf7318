"""How much of the shelves a look-alike group and a source may take: producers choose both."""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from memory.rows import batches
from memory.schema import exemplars

MOST_ALIKE = 20
"""Exemplars of one group: more than make a cluster, and one is a witness like the next."""

MOST_WAITING = 10_000
"""Exemplars of one source that wait for a person, the newest: of nine crops each, 4 GB."""


def with_room(connection: Connection, groups: Sequence[str], most: int) -> list[bool]:
    """Say of each new exemplar's group, in turn, whether it has fewer than `most` that were not dropped."""
    held = Counter[str]()
    for some in batches(sorted(set(groups))):
        query = select(exemplars.c.group, func.count()).where(
            exemplars.c.group.in_(some), exemplars.c.shelf != "dropped"
        )
        held.update({row[0]: row[1] for row in connection.execute(query.group_by(exemplars.c.group))})
    room = []
    for group in groups:
        room.append(held[group] < most)
        held[group] += room[-1]
    return room


def beyond_sources(connection: Connection, most: int) -> list[str]:
    """Return the ids of what waits beyond the newest `most` of its source."""
    waiting = exemplars.c.shelf == "unknown"
    of_source = select(exemplars.c.source).where(waiting).group_by(exemplars.c.source)
    beyond: list[str] = []
    for source in connection.scalars(of_source.having(func.count() > most)).all():
        newest = (exemplars.c.received_ms.desc(), exemplars.c.id.desc())
        mine = select(exemplars.c.id).where(waiting, exemplars.c.source == source)
        beyond += connection.scalars(mine.order_by(*newest).offset(most)).all()
    return beyond
