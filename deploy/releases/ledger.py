"""The append-only ledger: every move of every release, in order, with who made it and why.

The state of a release is never stored: it is the fold of deploy.releases.standing over these rows. Its
tables are the same on SQLite and PostgreSQL; changes are in migrations/. Triggers of the database hold
append-only, so that a slip of the hand in a SQL shell fails too. Each row's hash covers the row and the hash
before: who drops a trigger and changes a row makes every later hash wrong. A process proves the chain as it
opens the ledger, every new row before it is acted upon, and the old rows again bit by bit (`look_back`).
What the chain cannot show is that the newest rows are missing: the releases topic then names a later rollout
than the ledger (see deploy.releases.publish), and a published head of the record has more acts (see
deploy.record.heads).
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Integer, String, Table, Text
from sqlalchemy.exc import SQLAlchemyError

from deploy.record.chain import (
    RESTORE,
    Act,
    BrokenChainError,
    Head,
    append,
    head_of,
    identity,
    link_rows,
    look_back,
    metadata,
    prove,
)
from deploy.release_records import Action, Bound
from deploy.rollout_records import Turn
from memory.database import READS, UnknownLayoutError, cause_of, migrate, open_engine
from updater.records import Candidate

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
    Column("requested_by", String(200)),
    Column("bound", Text),
    Column("rollout", Text),
)


class LedgerError(Exception):
    """The ledger's database cannot be opened, read or written; retryable."""


class DamagedLedgerError(LedgerError):
    """The ledger is not as it was written. Fatal: the database must come from a backup."""


@dataclass(frozen=True)
class Move:
    """A move to write into the ledger.

    candidate and requested_by come with `propose` alone, epoch with `raise epoch` alone, whose digests are
    empty. accepted and bound come with `approve`: the reason for each finding, by the name of its gate, and
    what the approval binds. rollout is what a move of a rollout says besides.
    """

    actor: str
    action: Action
    digest: str
    evaluation_digest: str
    reason: str | None = None
    candidate: Candidate | None = None
    epoch: int | None = None
    accepted: Mapping[str, str] | None = None
    requested_by: str | None = None
    bound: Bound | None = None
    rollout: Turn | None = None


@dataclass(frozen=True)
class Event:
    """A move that the ledger holds: its place (1, 2, 3, … without a gap), its time (UTC), its row's hash."""

    sequence: int
    at: datetime
    move: Move
    hash: str


Decide = Callable[[tuple[Event, ...]], Sequence[Move]]


_PROVEN_ANEW = 100
"""Of the newest rows at least so many are proven again at each reading, and twice as many at most."""


@dataclass(frozen=True)
class _Proven:
    """A process's proven rows so far: up to a head, and the state that the next reading starts from."""

    events: tuple[Event, ...]
    head: Head
    start: Head


class Ledger:
    """Reads and appends events. Safe to use from several threads and processes."""

    id: str
    """32 hexadecimal digits, drawn when the database was made, which tell this ledger from another."""

    def __init__(self, database_url: str) -> None:
        """Open or create the ledger at a SQLAlchemy URL and prove its chain; raises LedgerError."""
        self._lock = threading.Lock()
        self._damage: BrokenChainError | None = None
        try:
            self._engine = open_engine(database_url)
            with self._engine.begin() as connection:
                migrate(connection, "deploy.releases.migrations")
                self.id = _id(connection)
                self._looked_back = Head(0, self.id)
                self._proven = _Proven((), self._looked_back, self._looked_back)
                self._read(connection, self._proven)
        except (SQLAlchemyError, OSError, ImportError, UnknownLayoutError) as error:
            raise LedgerError(f"cannot open the ledger: {cause_of(error)}") from error

    def close(self) -> None:
        self._engine.dispose()

    def events(self) -> tuple[Event, ...]:
        """Every event in order; raises LedgerError, and DamagedLedgerError where one was changed.

        The newest rows are proven each time, the others once: what is changed in those is noticed by
        `look_back`, and not acted upon before.
        """
        proven = self._proven  # before the transaction begins, which then sees at least as much
        try:
            with self._engine.connect().execution_options(**{READS: True}) as connection:
                return self._read(connection, proven)
        except SQLAlchemyError as error:
            raise LedgerError(f"cannot read the ledger: {cause_of(error)}") from error

    def prove_whole(self) -> list[str]:
        """Prove every row from the first; return their hashes. Raises LedgerError, BrokenChainError."""
        try:
            with self._engine.connect().execution_options(**{READS: True}) as connection:
                start = Head(0, _id(connection))
                return [row["hash"] for row in prove(connection, ledger, "ledger", start)]
        except SQLAlchemyError as error:
            raise LedgerError(f"cannot read the ledger: {cause_of(error)}") from error

    def look_back(self, rows: int) -> None:
        """Prove so many old rows once more, from where the last call ended, and begin again at the end.

        Raises LedgerError, and DamagedLedgerError where one was changed; then every later reading does.
        """
        proven = self._proven.head
        try:
            with self._engine.connect().execution_options(**{READS: True}) as connection:
                self._looked_back = look_back(connection, ledger, "ledger", self._looked_back, proven, rows)
        except BrokenChainError as error:
            self._damage = error
            raise DamagedLedgerError(str(error)) from error
        except SQLAlchemyError as error:
            raise LedgerError(f"cannot read the ledger: {cause_of(error)}") from error

    def append(self, decide: Decide) -> tuple[Event, ...]:
        """Let `decide` look at the history and append the moves that it returns, all or none.

        No other writer comes between the look and the writing. What `decide` raises passes
        through and nothing is written. Returns the appended events; raises LedgerError.
        """
        proven = self._proven
        try:
            with self._engine.begin() as connection:
                head = head_of(connection, ledger)
                history = self._read(connection, proven)
                at = datetime.now(UTC)
                rows = link_rows(head, [_to_row(move, at) for move in decide(history)])
                appended = tuple(map(_from_row, rows))
                if appended:
                    connection.execute(ledger.insert(), rows)
                    append(connection, *map(_to_act, appended))
                return appended
        except SQLAlchemyError as error:
            raise LedgerError(f"cannot write the ledger: {cause_of(error)}") from error

    def _read(self, connection: Connection, proven: _Proven) -> tuple[Event, ...]:
        """Every event that the transaction sees, which began after `proven` was known."""
        if self._damage is not None:
            raise DamagedLedgerError(str(self._damage))
        try:
            rows = list(prove(connection, ledger, "ledger", proven.start))
            known = proven.head.size - proven.start.size
            if len(rows) < known:
                raise BrokenChainError("ledger", proven.start.size + len(rows) + 1, "is gone")
            if known and rows[known - 1]["hash"] != proven.head.hash:
                raise BrokenChainError("ledger", proven.head.size, "was changed")
        except BrokenChainError as error:
            raise DamagedLedgerError(str(error)) from error
        if len(rows) == known:
            return proven.events
        events = proven.events + tuple(map(_from_row, rows[known:]))
        start = _head(rows[-1 - _PROVEN_ANEW]) if len(rows) > 2 * _PROVEN_ANEW else proven.start
        with self._lock:
            if len(events) > len(self._proven.events):
                self._proven = _Proven(events, _head(rows[-1]), start)
        return events


def _head(row: Mapping[str, Any]) -> Head:
    return Head(row["sequence"], row["hash"])


def _id(connection: Connection) -> str:
    ids = connection.execute(identity.select()).scalars().all()
    if len(ids) != 1:
        raise DamagedLedgerError(f"the ledger has {len(ids)} ids where it must have one; {RESTORE}")
    return str(ids[0])


def _to_act(event: Event) -> Act:
    move = event.move
    details = {
        "ledger": event.sequence,
        "ledger_hash": event.hash,
        "reason": move.reason,
        "accepted": dict(move.accepted) if move.accepted else None,
        "requested_by": move.requested_by,
        "bound": move.bound and move.bound.model_dump(mode="json"),
        "rollout": move.rollout and move.rollout.model_dump(mode="json", exclude_none=True),
    }
    given = {name: value for name, value in details.items() if value is not None}
    return Act(move.actor, move.action, move.digest, given, at=event.at)


def _to_row(move: Move, at: datetime) -> dict[str, Any]:
    return vars(move) | {
        "at": at.isoformat(),
        "candidate": move.candidate and move.candidate.model_dump_json(),
        "accepted": json.dumps(move.accepted) if move.accepted else None,
        "bound": move.bound and move.bound.model_dump_json(),
        "rollout": move.rollout and move.rollout.model_dump_json(exclude_none=True),
    }


def _from_row(row: dict[str, Any]) -> Event:
    candidate = Candidate.model_validate_json(row["candidate"]) if row["candidate"] else None
    columns = {field.name: row[field.name] for field in fields(Move)}
    accepted = json.loads(row["accepted"]) if row["accepted"] else None
    bound = Bound.model_validate_json(row["bound"]) if row["bound"] else None
    rollout = Turn.model_validate_json(row["rollout"]) if row["rollout"] else None
    read = {"candidate": candidate, "accepted": accepted, "bound": bound, "rollout": rollout}
    move = Move(**columns | read)
    return Event(row["sequence"], datetime.fromisoformat(row["at"]), move, row["hash"])
