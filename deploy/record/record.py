"""The record as one process has it open: proves, appends and reads acts."""

import json
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from deploy.record.chain import Act, Head, append, head_of, identity, look_back, prove, record
from deploy.records import RecordEntry
from memory.acts import acts_after
from memory.database import READS, UnknownLayoutError, cause_of, migrate, open_engine
from memory.store import Store

_AT_ONCE = 1000
"""So many values a query may name; SQLite of old takes 32,766, PostgreSQL 65,535."""


class RecordError(Exception):
    """The record's database cannot be opened, read or written; retryable."""


class Record:
    """Every act of every room. Safe to use from several threads and processes."""

    def __init__(self, database_url: str) -> None:
        """Open or create the record in deploy's database; raises RecordError."""
        try:
            self._engine = open_engine(database_url)
            with self._engine.begin() as connection:
                migrate(connection, "deploy.releases.migrations")
                self.id = str(connection.execute(select(identity.c.id)).scalar_one())
        except (SQLAlchemyError, OSError, ImportError, UnknownLayoutError) as error:
            raise RecordError(f"cannot open the record: {cause_of(error)}") from error
        self.proven = self._looked_back = Head(0, self.id)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection inside a transaction of deploy's database, for an act and its record.

        Raises RecordError.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise RecordError(f"cannot write the record: {cause_of(error)}") from error

    def append(self, *acts: Act) -> None:
        """Put acts on record in a transaction of their own. Raises RecordError."""
        with self.write() as connection:
            append(connection, *acts)

    def append_once(self, *acts: Act) -> int:
        """Put acts on record whose `origin` is not there yet; return how many. Raises RecordError."""
        with self.read() as connection:
            if not _lacking(connection, acts):
                return 0
        with self.write() as connection:
            head_of(connection, record)  # from here on no other server puts the same acts there
            lacking = _lacking(connection, acts)
            append(connection, *lacking)
        return len(lacking)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection which waits for no writer. Raises RecordError."""
        try:
            with self._engine.connect().execution_options(**{READS: True}) as connection:
                yield connection
        except SQLAlchemyError as error:
            raise RecordError(f"cannot read the record: {cause_of(error)}") from error

    def prove(self) -> Head:
        """Prove the rows since the last call, from the beginning at the first; return the proven head.

        Raises RecordError, BrokenChainError.
        """
        with self.read() as connection:
            for row in prove(connection, record, "record", self.proven):
                self.proven = Head(row["sequence"], row["hash"])
        return self.proven

    def prove_whole(self) -> tuple[Head, list[str]]:
        """Prove every act from the first; return the head, and the hashes of the ledger's rows by the acts.

        Raises RecordError, BrokenChainError.
        """
        moves = list[str]()
        with self.read() as connection:
            head = Head(0, str(connection.execute(select(identity.c.id)).scalar_one()))
            for row in prove(connection, record, "record", head):
                head = Head(row["sequence"], row["hash"])
                if (move := json.loads(row["details"]).get("ledger_hash")) is not None:
                    moves.append(move)
        return head, moves

    def look_back(self, rows: int) -> None:
        """Prove so many old rows once more, from where the last call ended, and begin again at the end.

        Raises RecordError, BrokenChainError.
        """
        with self.read() as connection:
            proven = self.proven
            self._looked_back = look_back(connection, record, "record", self._looked_back, proven, rows)

    def head(self) -> Head:
        """Where the record ends now, unproven. Raises RecordError."""
        newest = select(record.c.sequence, record.c.hash).order_by(record.c.sequence.desc()).limit(1)
        with self.read() as connection:
            row = connection.execute(newest).first()
        return Head(0, self.id) if row is None else Head(row.sequence, row.hash)

    def hashes(self, sequences: Collection[int]) -> dict[int, str]:
        """The hashes of these acts, of those that are there. Raises RecordError."""
        wanted, hashes = sorted(sequences), dict[int, str]()
        with self.read() as connection:
            for start in range(0, len(wanted), _AT_ONCE):
                some = record.c.sequence.in_(wanted[start : start + _AT_ONCE])
                rows = connection.execute(select(record.c.sequence, record.c.hash).where(some))
                hashes |= {row.sequence: row.hash for row in rows}
        return hashes

    def entries(
        self,
        limit: int,
        *,
        before: int | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
    ) -> list[RecordEntry]:
        """At most `limit` acts that agree with everything given, the newest first. Raises RecordError.

        before: only those with a lower sequence number; since: only those done at this time or later.
        """
        query = select(record).order_by(record.c.sequence.desc()).limit(limit)
        if before is not None:
            query = query.where(record.c.sequence < before)
        if actor is not None:
            query = query.where(record.c.actor == actor)
        if action is not None:
            query = query.where(record.c.action == action)
        if since is not None:
            query = query.where(record.c.at >= since.astimezone(UTC).isoformat(timespec="microseconds"))
        with self.read() as connection:
            return [_entry(dict(row)) for row in connection.execute(query).mappings()]


def _lacking(connection: Connection, acts: Sequence[Act]) -> list[Act]:
    origins = select(record.c.origin).where(record.c.origin.in_([act.origin for act in acts]))
    present = set(connection.scalars(origins))
    return [act for act in acts if act.origin not in present]


def _entry(row: dict[str, Any]) -> RecordEntry:
    return RecordEntry(**row | {"details": json.loads(row["details"])})


_ACTS_AT_ONCE = 500


class MemoryActs:
    """The way of the memory's acts into the record. Safe to use from several threads and processes.

    An act and its row in the memory are one transaction, so none is lost where this is interrupted: the next
    call brings it in. Where the record's database was restored from an older copy, the next start does.
    """

    def __init__(self, memory: Store, record: Record) -> None:
        self._memory, self._record = memory, record
        self._newest = 0  # the memory's newest act that is on record, as far as this process knows
        self._one_at_a_time = threading.Lock()

    def bring_in(self) -> int:
        """Put new acts on record; return how many. Raises StoreUnavailableError, RecordError."""
        brought = 0
        with self._one_at_a_time:
            while True:
                with self._memory.read() as connection:
                    acts = acts_after(connection, self._newest, _ACTS_AT_ONCE)
                if not acts:
                    return brought
                brought += self._record.append_once(
                    *(Act(act.actor, act.action, act.subject, act.details, act.at, act.uid) for act in acts)
                )
                self._newest = acts[-1].id
