"""Hash chains, and the record: who changes, removes or inserts a row makes every later hash wrong.

The ledger and the record are such tables, of one database and begun by one id. The record has every act of
every room, in order, with who did it and to what. Whoever acts appends in the transaction of the act, so that
neither is there without the other. The memory's acts come by way of a table of its own (memory.acts), from
which `deploy.record.record.MemoryActs` brings them in.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, Index, Integer, MetaData, String, Table, Text, select

metadata = MetaData()
identity = Table("deploy_ledger_identity", metadata, Column("id", String(32), primary_key=True))
"""One row: the database's id, drawn at random when its tables were made. Both hash chains begin with it."""

RESTORE = "stop the deploy server and restore its database from a backup"

_ROWS_AT_ONCE = 1000


class BrokenChainError(Exception):
    """A row is not as it was written; `sequence` is the first such row's. Fatal: nothing mends it."""

    def __init__(self, name: str, sequence: int, wrong: str) -> None:
        super().__init__(f"row {sequence} of the {name} {wrong}; {RESTORE}")
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
    connection: Connection, table: Table, name: str, after: Head, limit: int | None = None
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
            raise BrokenChainError(name, _first_gone(connection, table, after.size), "is gone")
        if last["hash"] != after.hash:
            raise BrokenChainError(name, after.size, "was changed")
    before = after.hash
    for sequence, row in enumerate(map(dict, rows), after.size + 1):
        if row["sequence"] != sequence:
            raise BrokenChainError(name, sequence, "is gone")
        if row["hash"] != link(before, row):
            raise BrokenChainError(name, sequence, "was changed")
        before = row["hash"]
        yield row


def look_back(connection: Connection, table: Table, name: str, looked: Head, proven: Head, rows: int) -> Head:
    """Prove `rows` rows after `looked` once more, up to a head that was proven; return how far that came.

    At the end it is a head of no row, with which the next look begins anew. Raises BrokenChainError.
    """
    for row in prove(connection, table, name, looked, limit=min(rows, proven.size - looked.size)):
        looked = Head(row["sequence"], row["hash"])
    if looked.size < proven.size:
        return looked
    if looked != proven:
        raise BrokenChainError(name, looked.size, "was changed")
    return Head(0, connection.execute(select(identity.c.id)).scalar_one())


def _first_gone(connection: Connection, table: Table, size: int) -> int:
    present = select(table.c.sequence).where(table.c.sequence <= size).order_by(table.c.sequence)
    sequences = connection.scalars(present).all()
    return next((i for i, sequence in enumerate(sequences, 1) if sequence != i), len(sequences) + 1)


record = Table(
    "deploy_record",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(40), nullable=False),
    Column("subject", String(300), nullable=False),
    Column("details", Text, nullable=False),
    # Of an act that several tries or servers would put here: what tells it from every other. Twice is once.
    Column("origin", String(32), unique=True),
    Column("hash", String(64), nullable=False),
    Index("deploy_record_by_actor", "actor", "sequence"),
    Index("deploy_record_by_action", "action", "sequence"),
)

_LONGEST_SUBJECT = 300


@dataclass(frozen=True)
class Act:
    """An act to put on record.

    actor did `action` (a word or two, such as `label` or `revoke token`) to `subject` (such as `label 7`).
    details become JSON. at is when it was done, by default now; origin: see the table.
    """

    actor: str
    action: str
    subject: str
    details: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    origin: str | None = None


def append(connection: Connection, *acts: Act) -> None:
    """Put acts on record in the caller's transaction of deploy's database: with it, or not at all.

    Every other writer of that database waits until the transaction ends; so append last.
    """
    head = head_of(connection, record)
    rows = link_rows(head, map(_to_row, acts))
    if rows:
        connection.execute(record.insert(), rows)


def _to_row(act: Act) -> dict[str, Any]:
    # A source or a file may have any name; as it was given it may stand in the details, which are ASCII.
    subject = "".join(c if c.isprintable() else "�" for c in act.subject)[:_LONGEST_SUBJECT]
    return {
        "at": (act.at or datetime.now(UTC)).isoformat(timespec="microseconds"),
        "actor": act.actor,
        "action": act.action,
        "subject": subject,
        "details": json.dumps(act.details, sort_keys=True),
        "origin": act.origin,
    }
