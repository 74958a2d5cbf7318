"""A hash chain over a table's rows: who changes, removes or inserts one makes every later hash wrong.

The ledger and the record are such tables, of one database and begun by one id.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, MetaData, String, Table, select

metadata = MetaData()
identity = Table("deploy_ledger_identity", metadata, Column("id", String(32), primary_key=True))
"""One row: the database's id, drawn at random when its tables were made. Both hash chains begin with it."""

RESTORE = "stop the deploy server and restore its database from a backup"

_ROWS_AT_ONCE = 1000


class BrokenChainError(Exception):
    """A row is not as it was written; `sequence` is the first such row's. Fatal: nothing mends it."""

    def __init__(self, what: str, sequence: int, wrong: str) -> None:
        super().__init__(f"row {sequence} of the {what} {wrong}; {RESTORE}")
        self.sequence = sequence


@dataclass(frozen=True)
class Head:
    """Where a chain ends, or is proven up to: its number of rows, and the hash of the last of them.

    The hash of no row at all is the database's id.
    """

    size: int
    hash: str


def link(before: str, row: Mapping[str, Any]) -> str:
    """The hash of a row, SHA-256 in hexadecimal digits.

    before is the hash of the row before, for the first row the database's id. Columns that are null are
    left out, so that a column which is added later changes no hash.
    """
    values = {name: value for name, value in row.items() if value is not None and name != "hash"}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()


def link_rows(head: Head, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that go on after a head, each with its `sequence` and `hash`."""
    done = []
    for sequence, row in enumerate(rows, head.size + 1):
        row = row | {"sequence": sequence}
        head = Head(sequence, link(head.hash, row))
        done.append(row | {"hash": head.hash})
    return done


def head_of(connection: Connection, table: Table) -> Head:
    """Where the chain ends. Until the transaction ends, nobody else appends to a chain of this database.

    Of PostgreSQL it asks for the isolation READ COMMITTED, which is the default: what others committed
    while this waited must be seen.
    """
    # One row that all writers lock: they stand in a queue, as BEGIN IMMEDIATE makes them do on SQLite.
    database_id = connection.execute(select(identity.c.id).with_for_update()).scalar_one()
    newest = select(table.c.sequence, table.c.hash).order_by(table.c.sequence.desc()).limit(1)
    last = connection.execute(newest).first()
    return Head(0, database_id) if last is None else Head(last.sequence, last.hash)


def prove(
    connection: Connection, table: Table, what: str, after: Head, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows after a head, at most `limit`, each once it is proven to follow from the one before.

    That the head's own row still bears the head's hash is proven first. Raises BrokenChainError.
    """
    query = select(table).where(table.c.sequence >= after.size).order_by(table.c.sequence)
    if limit is not None:
        query = query.limit(limit + bool(after.size))
    # Read as they come: a record of 10⁵ rows need not be in memory as a whole.
    rows = connection.execute(query.execution_options(yield_per=_ROWS_AT_ONCE)).mappings()
    if after.size:
        last = next(rows, None)
        if last is None or last["sequence"] != after.size:
            raise BrokenChainError(what, _first_gone(connection, table, after.size), "is gone")
        if last["hash"] != after.hash:
            raise BrokenChainError(what, after.size, "was changed")
    before = after.hash
    for sequence, row in enumerate(map(dict, rows), after.size + 1):
        if row["sequence"] != sequence:
            raise BrokenChainError(what, sequence, "is gone")
        if row["hash"] != link(before, row):
            raise BrokenChainError(what, sequence, "was changed")
        before = row["hash"]
        yield row


def look_back(connection: Connection, table: Table, what: str, looked: Head, proven: Head, rows: int) -> Head:
    """Prove `rows` rows after `looked` once more, up to a head that was proven; return how far that came.

    At the end it is a head of no row, with which the next look begins anew. Raises BrokenChainError.
    """
    for row in prove(connection, table, what, looked, limit=min(rows, proven.size - looked.size)):
        looked = Head(row["sequence"], row["hash"])
    if looked.size < proven.size:
        return looked
    if looked != proven:
        raise BrokenChainError(what, looked.size, "was changed")
    return Head(0, connection.execute(select(identity.c.id)).scalar_one())


def _first_gone(connection: Connection, table: Table, size: int) -> int:
    present = select(table.c.sequence).where(table.c.sequence <= size).order_by(table.c.sequence)
    sequences = connection.scalars(present).all()
    return next((i for i, sequence in enumerate(sequences, 1) if sequence != i), len(sequences) + 1)
