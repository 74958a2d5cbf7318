"""Where to read on in the topic of unknowns, kept in the transaction of the rows that were read."""

from collections.abc import Mapping

from sqlalchemy import Connection, insert, select, update

from ingest.records import Position
from memory.schema import offsets


def save_offsets(
    connection: Connection, offsets_: Mapping[tuple[str, int], int], topic_id: str | None = None
) -> None:
    """Record the next offset to read of each (topic, partition), in the transaction of the rows.

    topic_id is the broker's id of the topic, where it is known.
    """
    for (topic, partition), offset in offsets_.items():
        here = (offsets.c.topic == topic) & (offsets.c.partition == partition)
        values = {"next_offset": offset, "topic_id": topic_id}
        if not connection.execute(update(offsets).where(here).values(values)).rowcount:
            connection.execute(insert(offsets).values(topic=topic, partition=partition, **values))


def load_offsets(connection: Connection) -> dict[tuple[str, int], int]:
    """Return the next offset to read of each (topic, partition)."""
    return {at: position.offset for at, position in load_positions(connection).items()}


def load_positions(connection: Connection) -> dict[tuple[str, int], Position]:
    """Return where to read on in each (topic, partition)."""
    rows = connection.execute(select(offsets))
    return {(row.topic, row.partition): Position(row.next_offset, row.topic_id) for row in rows}
