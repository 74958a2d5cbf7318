"""The memory's database: opened, checked, read and written in short transactions; and where to read on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    IntegrityError,
    InternalError,
    NoSuchModuleError,
    OperationalError,
)

from ingest.records import Position
from memory.database import READS, UnknownLayoutError, cause_of, migrate, open_engine, show_url
from memory.schema import offsets, revision

_FAILS = (OperationalError, InternalError)
"""InternalError: of PostgreSQL, that it only reads, as a standby does."""


class ExemplarMemoryError(Exception):
    """Anything that the memory refuses or cannot do."""


class StoreUnavailableError(ExemplarMemoryError):
    """Retryable: the database cannot be reached, stayed locked, or only reads."""


class WrongStoreError(ExemplarMemoryError):
    """Fatal: the URL opens nothing, or a layout that this version does not know."""


class RefusedRowError(ExemplarMemoryError):
    """Fatal for the rows of the transaction: the database does not take their values."""


_REFUSED = (DataError, IntegrityError, UnicodeEncodeError, OverflowError)
"""The last two are of drivers: a lone surrogate, a number of more than 64 bits."""
_PROGRAM_LIMIT = "54"
"""PostgreSQL's class of errors for what is too long for it, as a key of an index: it would be so again."""


class Store:
    """One database, shared by threads and by processes (the worker, the server, an import).

    SQLite runs in WAL with synchronous=FULL: what was committed survives a power cut, and readers
    do not wait for the writer. PostgreSQL takes the same statements; its driver is the caller's.
    """

    def __init__(self, url: str) -> None:
        """Open the database and bring its tables to today's layout.

        Raises WrongStoreError or StoreUnavailableError.
        """
        self._engine = _engine(url)
        try:
            self._prepare()
        except _FAILS as error:
            raise StoreUnavailableError(f"cannot open {show_url(url)}: {cause_of(error)}") from error

    def _prepare(self) -> None:
        with self._connection(writes=True) as connection:
            try:
                migrate(connection, "memory.migrations")
            except UnknownLayoutError as error:
                raise WrongStoreError(str(error)) from error
            if connection.execute(select(revision.c.number)).scalar() is None:
                connection.execute(insert(revision).values(id=1, number=0))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection which sees one state throughout. Raises StoreUnavailableError."""
        with self._connection(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection inside the one write transaction at a time: all of it or nothing.

        Keep it short: every other writer waits. Raises StoreUnavailableError, and RefusedRowError.
        """
        with self._connection(writes=True) as connection:
            connection.execute(update(revision).values(number=revision.c.number + 1))
            yield connection

    @contextmanager
    def write_unversioned(self) -> Iterator[Connection]:
        """Yield a connection as `write` does, for tables that no reader of the revision reads: it stays."""
        with self._connection(writes=True) as connection:
            # The lock that puts writers in a queue; on SQLite they are in one already.
            connection.execute(select(revision.c.number).with_for_update())
            yield connection

    def revision(self) -> int:
        """Return a number that grows with every write: data read at the same number still holds."""
        with self.read() as connection:
            return current_revision(connection)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _connection(self, *, writes: bool) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                options: dict[str, Any] = {READS: not writes}
                if not writes and connection.dialect.name != "sqlite":
                    options["isolation_level"] = "REPEATABLE READ"
                connection = connection.execution_options(**options)
                with connection.begin():
                    yield connection
        except _FAILS as error:
            if str(getattr(error.orig, "sqlstate", "")).startswith(_PROGRAM_LIMIT):
                raise RefusedRowError(f"the memory's database refused a row: {cause_of(error)}") from error
            raise StoreUnavailableError(f"the memory's database failed: {cause_of(error)}") from error
        except _REFUSED as error:
            raise RefusedRowError(f"the memory's database refused a row: {cause_of(error)}") from error


def current_revision(connection: Connection) -> int:
    """Return the revision that this transaction sees, or makes."""
    return int(connection.execute(select(revision.c.number)).scalar_one())


def _engine(url: str) -> Engine:
    try:
        return open_engine(url)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise WrongStoreError(f"cannot open the memory's database URL: {error}") from error
    except OSError as error:
        raise WrongStoreError(f"cannot make the folder of {show_url(url)}: {error}") from error


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
