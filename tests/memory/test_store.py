import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.schema import CreateTable

from ingest.process.frame import WrongSettingError
from memory import database
from memory.database import READS, cause_of, open_engine, read_url, require_openable, show_url
from memory.metrics import Fill
from memory.schema import metadata
from memory.store import Store, StoreUnavailableError, WrongStoreError, load_offsets, save_offsets

WRITER = """
import sys
from memory.store import save_offsets, load_offsets
from memory.store import Store
store = Store(sys.argv[1])
for _ in range(25):
    with store.write() as connection:
        now = load_offsets(connection).get(("t", 0), 0)
        save_offsets(connection, {("t", 0): now + 1})
"""

DIES_INSIDE = """
import sys, time
from memory.store import save_offsets
from memory.store import Store
store = Store(sys.argv[1])
with store.write() as connection:
    save_offsets(connection, {("t", 0): 7})
    if sys.argv[2] == "inside":
        print("ready", flush=True)
        time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_the_database_survives_a_power_cut_and_lets_readers_through(store):
    with store.read() as connection:
        pragma = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragma == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_all_that_open_a_new_database_at_once_are_let_in(tmp_path):
    at_once = Barrier(4, timeout=60)

    def first_look(url):
        engine = open_engine(url)
        at_once.wait()
        with engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT 1").scalar_one()
        engine.dispose()
        return int(found)

    # One round in fifteen or so had one that was refused, when nothing kept them apart.
    with ThreadPoolExecutor(4) as pool:
        for number in range(60):
            url = f"sqlite:///{tmp_path}/{number}/memory.sqlite"
            assert list(pool.map(first_look, [url] * 4)) == [1] * 4


@pytest.mark.slow
def test_four_processes_that_open_it_at_once_lose_no_update(tmp_path):
    url = f"sqlite:///{tmp_path}/new/memory.sqlite"
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, url]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    store = Store(url)
    with store.read() as connection:
        assert load_offsets(connection) == {("t", 0): 100}
    store.close()


@pytest.mark.bar("C1")
@pytest.mark.slow
@pytest.mark.parametrize(("where", "offset"), [("inside", None), ("after", 7)])
def test_a_killed_writer_leaves_all_of_its_transaction_or_nothing(tmp_path, where, offset):
    url = f"sqlite:///{tmp_path}/memory.sqlite"
    process = subprocess.Popen([sys.executable, "-c", DIES_INSIDE, url, where], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    store = Store(url)
    with store.read() as connection:
        assert load_offsets(connection).get(("t", 0)) == offset
    store.close()


def test_a_write_that_raises_changes_nothing_not_even_the_revision(store):
    before = store.revision()

    def fail():
        with store.write() as connection:
            save_offsets(connection, {("t", 0): 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.revision() == before
    with store.write() as connection:
        save_offsets(connection, {("t", 0): 1})
    assert store.revision() == before + 1


def test_a_newer_layout_is_refused(settings, store):
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE memory_layout SET version_num = '9999'")
    with pytest.raises(WrongStoreError, match="layout 9999"):
        Store(settings.database_url)


def test_a_locked_database_is_a_retryable_fault(tmp_path, monkeypatch):
    monkeypatch.setattr("memory.database._LOCK_WAIT_S", 0.1)
    store = Store(f"sqlite:///{tmp_path}/memory.sqlite")
    other = sqlite3.connect(tmp_path / "memory.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"), store.write():
        pass
    other.execute("ROLLBACK")
    with store.write():
        pass
    other.close()
    store.close()


@pytest.mark.parametrize("url", ["sqlite://", "nonsense", "nosuchdatabase://host/name"])
def test_a_wrong_url_is_said_in_one_line(url):
    with pytest.raises(WrongStoreError) as caught:
        Store(url)
    assert "\n" not in str(caught.value)


def test_the_tables_are_valid_on_postgresql_too():
    for table in metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))


def test_an_empty_shelf_of_unknowns_is_shown_as_empty(sqlite_url):
    # A series that is not there is no zero: a panel would say that nothing is known.
    store = Store(sqlite_url)
    shown = {
        (metric.name, *sample.labels.values()): sample.value
        for metric in Fill(store).collect()
        for sample in metric.samples
    }
    store.close()
    assert shown["forgewatch_memory_exemplars", "unknown", ""] == 0


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_LOCK_WAIT_S", 0.1)
    opened = open_engine(f"sqlite:///{tmp_path}/deep/rows.sqlite")
    with opened.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")
    yield opened
    opened.dispose()


def test_what_a_database_says_is_one_line_without_the_statement_and_its_values(engine):
    with engine.connect() as connection, pytest.raises(OperationalError) as raised:
        connection.execute(text("SELECT n FROM gone WHERE n = :n"), {"n": "a secret"})
    assert cause_of(raised.value) == "no such table: gone"
    assert cause_of(OSError("of two\n  lines")) == "of two lines"


def test_a_commit_is_on_the_disk_when_it_returns(engine):
    with engine.connect() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
    assert found == ["wal", 2]


def test_a_transaction_that_may_write_holds_the_lock_from_its_start(engine):
    with engine.connect() as first:
        first.exec_driver_sql("SELECT * FROM t")
        with engine.connect() as second, pytest.raises(OperationalError, match="locked"):
            second.exec_driver_sql("SELECT * FROM t")


def test_a_reader_waits_for_no_writer_and_sees_one_state(engine):
    reader = engine.execution_options(**{READS: True})
    with reader.connect() as reading:
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
        with engine.begin() as writing:
            writing.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
    with reader.connect() as reading:
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar() == 1


def test_what_was_not_committed_is_gone(engine, tmp_path):
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    other = sqlite3.connect(tmp_path / "deep/rows.sqlite")
    assert other.execute("SELECT count(*) FROM t").fetchone() == (0,)
    other.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_that_only_one_process_could_see_is_refused(url):
    with pytest.raises(ArgumentError, match="several processes"):
        open_engine(url)


MULTIPLE = {"host": "a,b", "port": "1,2", "dbname": "x", "target_session_attrs": "primary"}


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("postgres://ada:to:#?[p@h/x", {"host": "h", "dbname": "x", "user": "ada", "password": "to:#?[p"}),
        ("postgresql+psycopg://ada:%40%2F@[::1]:7/x", {"host": "::1", "port": "7", "password": "@/"}),
        ("postgresql:///x?host=/run/pg&user=ada", {"host": "/run/pg", "dbname": "x", "user": "ada"}),
        ("postgresql://%2Frun%2Fpg/x", {"host": "/run/pg", "dbname": "x"}),
        ("postgresql://a:1,b:2/x?target_session_attrs=primary", MULTIPLE),
        ("host=/run/pg dbname=x password='@ /%'", {"host": "/run/pg", "password": "@ /%"}),
        ("service=ours", {"service": "ours"}),
    ],
)
def test_what_libpq_takes_is_asked_as_it_is_and_shown_without_the_password(url, asked):
    pytest.importorskip("psycopg")
    _, options = read_url(url)
    assert asked.items() <= options.items()
    assert options.get("password", "no password") not in show_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *(f"postgresql://ada:{word}hunter2@host/x" for word in ("to@", "to/", "7/", "to%", "to ", "%00")),
        *("postgresql://ada:hunter2@host:port/x", "postgresql://ada:hunter2@host:77777/x"),
        *("postgresql://ada@host/x?hunter2=1", "host=a,b,c port=1,2 password=hunter2", "password=hunter2 x"),
        *("oracle://ada:to/hunter2@x:y/z", "hunter2", ""),
    ],
)
def test_what_cannot_be_told_from_the_password_is_refused_in_one_line_without_it(url):
    with pytest.raises(WrongSettingError) as refused:
        require_openable("X", url)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
