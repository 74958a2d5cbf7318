"""The append-only ledger: every move of every release, in order, with who made it and why.

The state of a release is never stored: it is the fold of deploy.releases.approval over these rows. Its
tables are the same on SQLite and PostgreSQL; changes are in migrations/. Triggers of the database hold
append-only, so that a slip of the hand in a SQL shell fails too. Each row's hash covers the row and the hash
before: who drops a trigger and changes a row makes every later hash wrong. Each reading proves the chain, so
no changed row is ever acted upon. What it cannot show is that the newest rows are missing: the releases
topic then names a later rollout than the ledger (see deploy.releases.epoch).
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from deploy.records import Action
from memory.database import READS, UnknownLayoutError, cause_of, migrate, open_engine
from updater.records import Candidate

metadata = MetaData()
ledger = Table(
    "deploy_ledger",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("evaluation_digest", String(64), nullable=False),
    Column("reason", Text),
    Column("candidate", Text),
    Column("epoch", BigInteger),
    Column("hash", String(64), nullable=False),
    Column("accepted", Text),
)
identity = Table("deploy_ledger_identity", metadata, Column("id", String(32), primary_key=True))
"""One row: the ledger's id, drawn at random when its tables were made. The hash chain begins with it."""


def link(before: str, row: Mapping[str, Any]) -> str:
    """The hash of a row, SHA-256 in hexadecimal digits.

    before is the hash of the row before, for the first row the ledger's id. Columns that are null are
    left out, so that a column which is added later changes no hash.
    """
    told = {name: value for name, value in row.items() if value is not None and name != "hash"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()


class LedgerError(Exception):
    """The ledger's database cannot be opened, read or written; retryable."""


class DamagedLedgerError(LedgerError):
    """The ledger is not as it was written. Fatal: the database must come from a backup."""


@dataclass(frozen=True)
class Move:
    """What somebody wants to write into the ledger.

    candidate comes with `propose` alone, epoch with `raise epoch` alone, whose digests are empty. accepted
    comes with `approve`: the reason for each finding, by the name of its gate.
    """

    actor: str
    action: Action
    digest: str
    evaluation_digest: str
    reason: str | None = None
    candidate: Candidate | None = None
    epoch: int | None = None
    accepted: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Event:
    """A move that the ledger holds: its place (1, 2, 3, … without a gap) and its time (UTC)."""

    sequence: int
    at: datetime
    move: Move


_RESTORE = "stop the deploy server and restore its database from a backup"

Decide = Callable[[tuple[Event, ...]], Sequence[Move]]


class Ledger:
    """Reads and appends events. Safe to use from several threads and processes."""

    id: str
    """32 hexadecimal digits, drawn when the database was made, which tell this ledger from another."""

    def __init__(self, database_url: str) -> None:
        """Open or create the ledger at a SQLAlchemy URL and prove its chain; raises LedgerError."""
        try:
            self._engine = open_engine(database_url)
            with self._engine.begin() as connection:
                migrate(connection, "deploy.releases.migrations", "deploy_ledger")
                self.id = _id(connection)
                _read(connection, self.id)
        except (SQLAlchemyError, OSError, ImportError, UnknownLayoutError) as error:
            raise LedgerError(f"cannot open the ledger: {cause_of(error)}") from error

    def close(self) -> None:
        """Give the database's connections back."""
        self._engine.dispose()

    def events(self) -> tuple[Event, ...]:
        """Every event in order; raises LedgerError, and DamagedLedgerError where one was changed."""
        try:
            with self._engine.connect().execution_options(**{READS: True}) as connection:
                return _read(connection, self.id)[0]
        except SQLAlchemyError as error:
            raise LedgerError(f"cannot read the ledger: {cause_of(error)}") from error

    def append(self, decide: Decide) -> tuple[Event, ...]:
        """Let `decide` look at the history and append the moves that it returns, all or none.

        No other writer comes between the look and the writing. What `decide` raises passes
        through and nothing is written. Returns the appended events; raises LedgerError.
        """
        for _ in range(8):
            # Two writers that took the same next sequence: the primary key lets one through, the
            # other looks again. (SQLite never comes here: BEGIN IMMEDIATE already queues them.)
            with suppress(IntegrityError):
                return self._append(decide)
        raise LedgerError("cannot write the ledger: too many writers at once")

    def _append(self, decide: Decide) -> tuple[Event, ...]:
        try:
            with self._engine.begin() as connection:
                history, before = _read(connection, self.id)
                at = datetime.now(UTC)
                start = len(history) + 1
                appended = tuple(Event(start + i, at, move) for i, move in enumerate(decide(history)))
                if appended:
                    rows = [_to_row(event) for event in appended]
                    for row in rows:
                        row["hash"] = before = link(before, row)
                    connection.execute(ledger.insert(), rows)
                return appended
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            raise LedgerError(f"cannot write the ledger: {cause_of(error)}") from error


def _id(connection: Connection) -> str:
    ids = connection.execute(identity.select()).scalars().all()
    if len(ids) != 1:
        raise DamagedLedgerError(f"the ledger has {len(ids)} ids where it must have one; {_RESTORE}")
    return str(ids[0])


def _read(connection: Connection, ledger_id: str) -> tuple[tuple[Event, ...], str]:
    """Every event, and the hash that the next one's is linked to."""
    found = connection.execute(ledger.select().order_by(ledger.c.sequence)).mappings()
    rows = [dict(row) for row in found]
    before = ledger_id
    for expected, row in enumerate(rows, 1):
        if row["sequence"] != expected:
            raise DamagedLedgerError(f"row {expected} of the ledger is gone; {_RESTORE}")
        if row["hash"] != link(before, row):
            raise DamagedLedgerError(f"row {expected} of the ledger was changed; {_RESTORE}")
        before = row["hash"]
    return tuple(_from_row(row) for row in rows), before


def _to_row(event: Event) -> dict[str, Any]:
    candidate = event.move.candidate
    return vars(event.move) | {
        "sequence": event.sequence,
        "at": event.at.isoformat(),
        "candidate": candidate and candidate.model_dump_json(),
        "accepted": json.dumps(event.move.accepted) if event.move.accepted else None,
    }


def _from_row(row: dict[str, Any]) -> Event:
    candidate = Candidate.model_validate_json(row["candidate"]) if row["candidate"] else None
    columns = {field.name: row[field.name] for field in fields(Move)}
    accepted = json.loads(row["accepted"]) if row["accepted"] else None
    move = Move(**columns | {"candidate": candidate, "accepted": accepted})
    return Event(row["sequence"], datetime.fromisoformat(row["at"]), move)
