"""No wait on PostgreSQL is without a bound: a client or a server that is lost holds nobody for over a minute.

The server ends what takes too long, and the client gives up a server that says nothing. What only reads holds
nobody, and may compute within its transaction; a migration may take its time.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect

LOCK_WAIT_S: float = 20
STATEMENT_S: float = 25
IDLE_S: float = 34
"""A transaction whose client says nothing. With a statement before it, that is under a minute. One request to
the object store is shorter: crops are deleted within a transaction."""
READING_STATEMENT_S = 50
READING_IDLE_S = 900
"""An index is built within one."""
SILENT_S: float = 55
"""A server that says nothing, not even that a statement took too long."""
CONNECT_S = 10
_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_UNACKNOWLEDGED_MS = 30_000

T = TypeVar("T")


class Bounded(psycopg.Connection[Any]):
    """A connection that is closed once its server has said nothing for silent_s seconds; None: never."""

    silent_s: float | None = None

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        """Wait as psycopg does, which alone would wait for ever. Raises psycopg.OperationalError."""
        try:
            return super().wait(self._wait(gen), *arguments, **options)
        except psycopg.errors.IdleInTransactionSessionTimeout as error:
            # An internal error to psycopg, and to whoever uses the connection one that is gone.
            raise psycopg.OperationalError(str(error)) from error

    def _wait(self, gen: PQGen[T]) -> Generator[Any, Any, T]:
        heard, ready = monotonic(), None
        while True:
            try:
                wanted = next(gen) if ready is None else gen.send(ready)
            except StopIteration as end:
                value: T = end.value
                return value
            ready = yield wanted
            if ready:
                heard = monotonic()
            elif self.silent_s is not None and monotonic() > heard + self.silent_s:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"the server has said nothing for {self.silent_s:g} s")


def bound_waits(engine: Engine, reads: str) -> None:
    """Bound every wait of an engine whose driver is psycopg; reads is the option of readers."""
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "begin", partial(_begin, reads))


@contextmanager
def without_statement_timeout(connection: Connection) -> Iterator[None]:
    """Let the statements of the connection's transaction take as long as they do, until its end."""
    driver = connection.connection.driver_connection
    if not isinstance(driver, Bounded):
        yield
        return
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    driver.silent_s, before = None, driver.silent_s
    try:
        yield
    finally:
        driver.silent_s = before


def _connect(_dialect: Dialect, _record: object, arguments: Any, parameters: dict[str, Any]) -> Bounded:
    bounds = {"connect_timeout": CONNECT_S, "tcp_user_timeout": _UNACKNOWLEDGED_MS} | _KEEPALIVES
    # A pooler gives each transaction another connection to the server, which knows no statement of the last.
    connection = Bounded.connect(*arguments, prepare_threshold=None, **bounds | parameters)
    connection.silent_s = SILENT_S
    return connection


def _begin(reads: str, connection: Connection) -> None:
    """Bound the transaction by settings of its own: a session's would pass to other clients of a pooler."""
    only_reads = connection.get_execution_options().get(reads, False)
    settings = {
        "lock_timeout": round(LOCK_WAIT_S * 1000),
        "statement_timeout": round((READING_STATEMENT_S if only_reads else STATEMENT_S) * 1000),
        "idle_in_transaction_session_timeout": round((READING_IDLE_S if only_reads else IDLE_S) * 1000),
        "tcp_user_timeout": _UNACKNOWLEDGED_MS,
    } | {f"tcp_{name}": value for name, value in _KEEPALIVES.items()}
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items()))
