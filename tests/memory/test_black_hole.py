"""PostgreSQL behind a proxy that stops forwarding: who waits is told, and who is lost holds nobody."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from memory import postgresql
from memory.database import migrate, open_engine
from memory.store import Store, StoreUnavailableError, load_offsets, save_offsets

pytestmark = pytest.mark.slow


@pytest.fixture
def short(monkeypatch):
    """Bounds that a test can wait for, in the same order."""
    for name, value in {"SILENT_S": 2.0, "IDLE_S": 1.0, "LOCK_WAIT_S": 10.0, "CONNECT_S": 2}.items():
        monkeypatch.setattr(postgresql, name, value)
    return monkeypatch


def write(store, offset):
    with store.write() as connection:
        save_offsets(connection, {("t", 0): offset})


def read(store):
    with store.read() as connection:
        return load_offsets(connection)


def test_a_server_that_falls_silent_is_given_up_and_met_again(proxy, through, short):
    store = Store(through)
    write(store, 1)
    proxy.swallows.set()
    with pytest.raises(StoreUnavailableError, match="timeout expired"):
        write(store, 2)  # the old connection is given up, and a new one is not let in
    proxy.swallows.clear()
    assert read(store) == {("t", 0): 1}
    store.close()


def test_a_server_that_falls_silent_in_a_transaction_is_given_up(proxy, through, short):
    store = Store(through)
    with pytest.raises(StoreUnavailableError, match="said nothing for 2 s"), store.write():
        proxy.swallows.set()
    store.close()


def test_without_the_bound_it_is_waited_for_as_long_as_it_is_silent(proxy, through, short):
    """The control: a client whose patience has no end, and one beside it that has a bound."""
    bounded = Store(through)
    short.setattr(postgresql, "SILENT_S", None)
    patient = Store(through)
    read(patient)
    read(bounded)
    proxy.swallows.set()
    done = threading.Event()

    def wait():
        with contextlib.suppress(StoreUnavailableError):
            read(patient)
        done.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert proxy.swallowed.wait(60)
    with pytest.raises(StoreUnavailableError):
        read(bounded)
    assert not done.is_set()
    proxy.close()
    waiting.join(60)
    assert done.is_set()


@pytest.fixture
def lost(proxy, through, short):
    """A client that holds the writers' lock, and whose network is gone."""
    store = Store(through)
    with contextlib.suppress(StoreUnavailableError), store.write() as connection:
        save_offsets(connection, {("t", 0): 99})
        proxy.swallows.set()
        yield store
    store.close()


def test_a_client_that_is_lost_in_its_transaction_holds_nobody_up(lost, postgresql_url):
    other = Store(postgresql_url)
    write(other, 7)
    assert read(other) == {("t", 0): 7}
    other.close()


@pytest.fixture
def endless(short):
    short.setattr(postgresql, "IDLE_S", 0)  # to PostgreSQL: never
    short.setattr(postgresql, "LOCK_WAIT_S", 2.0)


def test_without_that_bound_the_lost_client_holds_all_up(endless, lost, postgresql_url):
    """The control; and that a lock is waited for with a bound, too."""
    other = Store(postgresql_url)
    with pytest.raises(StoreUnavailableError, match="lock timeout"):
        write(other, 7)
    other.close()


def test_a_server_that_takes_a_connection_and_says_nothing_is_given_up(proxy, through, short):
    proxy.swallows.set()
    with pytest.raises(StoreUnavailableError, match="timeout"):
        Store(through)


def compute_and_write(store, other):
    with store.write() as connection:
        with other.connect() as clock:
            clock.execute(text("SELECT pg_sleep(1.5)"))
        save_offsets(connection, {("t", 0): 1})


def test_a_client_that_only_reads_may_compute_in_its_transaction(postgresql_url, short):
    store, other = Store(postgresql_url), open_engine(postgresql_url)
    with store.read() as connection:
        load_offsets(connection)
        with other.connect() as clock:
            clock.execute(text("SELECT pg_sleep(1.5)"))
        assert load_offsets(connection) == {}
    with pytest.raises(StoreUnavailableError, match="idle-in-transaction"):
        compute_and_write(store, other)
    other.dispose()
    store.close()


def test_a_statement_is_ended_and_a_migration_s_is_not(postgresql_url, short):
    short.setattr(postgresql, "STATEMENT_S", 0.5)
    engine = open_engine(postgresql_url)
    with engine.connect() as connection, pytest.raises(Exception, match="statement timeout"):
        connection.execute(text("SELECT pg_sleep(1)"))
    with engine.begin() as connection, postgresql.without_statement_timeout(connection):
        connection.execute(text("SELECT pg_sleep(1)"))
    with engine.begin() as connection:
        assert connection.scalar(text("SHOW statement_timeout")) == "500ms"
        migrate(connection, "memory.migrations")
        assert connection.scalar(text("SHOW statement_timeout")) == "0"
    engine.dispose()


def test_who_is_lost_holds_nobody_for_over_a_minute(postgresql_url):
    engine = open_engine(postgresql_url)
    with engine.connect() as connection:

        def seconds(name):
            query = text("SELECT setting::float * CASE unit WHEN 'ms' THEN 0.001 ELSE 1 END FROM pg_settings")
            found = connection.scalar(text(f"{query} WHERE name = '{name}'"))
            return float(found or 0)

        assert 0 < seconds("statement_timeout") + seconds("idle_in_transaction_session_timeout") < 60
        assert 0 < seconds("lock_timeout") <= 30
        assert 0 < seconds("tcp_user_timeout") < 60
        assert 0 < seconds("tcp_keepalives_idle") < 60
        driver = connection.connection.driver_connection
        assert 0 < driver.silent_s < 60
        assert 0 < int(driver.info.get_parameters()["connect_timeout"]) < 60
    engine.dispose()


TRANSACTIONS = 200


def write_many(engine):
    """Transactions of four threads by a statement that psycopg would prepare: how many are kept, and fail."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS pooled (number integer)")
        connection.exec_driver_sql("TRUNCATE pooled")

    def write(number):
        try:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO pooled VALUES (:number)"), {"number": number})
        except DBAPIError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        written = sum(pool.map(write, range(TRANSACTIONS)))
    with engine.connect() as connection:
        kept = connection.exec_driver_sql("SELECT count(*) FROM pooled").scalar_one()
    engine.dispose()
    return int(kept), TRANSACTIONS - written


def bounds_of_others(pooler):
    """The statement timeouts that a client without settings of its own meets on the pooler's connections."""
    engine = create_engine(pooler, poolclass=NullPool)
    with engine.connect() as first, engine.connect() as second:
        return {one.exec_driver_sql("SHOW statement_timeout").scalar_one() for one in (first, second)}


def test_a_pooler_that_lends_its_connections_by_the_transaction_loses_none_and_passes_no_bound_on(pooler):
    assert write_many(open_engine(pooler)) == (TRANSACTIONS, 0)
    assert bounds_of_others(pooler) == {"0"}
    store = Store(pooler)
    write(store, 7)
    assert read(store) == {("t", 0): 7}
    store.close()


def test_statements_that_a_session_keeps_fail_behind_such_a_pooler(pooler):
    """The control: an engine as SQLAlchemy makes it, and a bound of a session that others meet."""
    _, failed = write_many(create_engine(pooler))
    assert failed
    engine = create_engine(pooler, poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET statement_timeout = 12345")
        connection.commit()
        assert bounds_of_others(pooler) & {"12345ms"}
        connection.exec_driver_sql("RESET statement_timeout")
        connection.commit()
