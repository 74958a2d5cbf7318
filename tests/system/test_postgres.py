"""Exemplars, update runs and ledger in one PostgreSQL database, which several processes open at once."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from deploy.ledger import Ledger
from deploy.local.processes import free_port
from memory import rows
from memory.store import Store, StoreUnavailableError

pytest.importorskip("psycopg")
_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
INITDB = str(_BINARIES[-1]) if _BINARIES else shutil.which("initdb")

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(INITDB is None, reason="PostgreSQL is not installed"),
]

# Each process opens all three, makes what is missing, and adds one to a number 25 times.
OPENS = """
import sys
from deploy.ledger import Ledger
from memory.rows import load_offsets, save_offsets
from memory.store import Store
from updater.runs import open_runs
from updater.settings import UpdaterSettings
url = sys.argv[1]
store, ledger, runs = Store(url), Ledger(url), open_runs(UpdaterSettings(database_url=url))
for _ in range(25):
    with store.write() as connection:
        now = load_offsets(connection).get(("t", 0), 0)
        save_offsets(connection, {("t", 0): now + 1})
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server of these tests alone; it refuses to run as root, so `nobody` does."""
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="forgewatch-postgres-", dir="/tmp"))
    if user:
        shutil.chown(folder, user)
    assert INITDB is not None
    data, port = folder / "data", free_port()

    def run(program: str, *arguments: str) -> None:
        command = [Path(INITDB or "").with_name(program), "-D", data, *arguments]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    run("initdb", "--username=forgewatch", "--auth=trust", "--no-sync")
    options = f"-p {port} -h 127.0.0.1 -k {folder} -F"
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    yield f"postgresql://forgewatch@127.0.0.1:{port}"
    run("pg_ctl", "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """An empty database of this test alone."""
    name = f"t{abs(hash(request.node.name))}"
    engine = create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{server}/{name}"


def test_four_processes_that_open_an_empty_database_at_once_lose_no_update(url: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", OPENS, url]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    store = Store(url)
    with store.read() as connection:
        assert rows.load_offsets(connection) == {("t", 0): 100}
    store.close()


def test_the_ledger_takes_no_change_from_a_sql_shell(url: str) -> None:
    Ledger(url).close()
    engine = create_engine(url)
    for statement in ("UPDATE deploy_ledger SET actor = 'eve'", "DELETE FROM deploy_ledger"):
        with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    engine.dispose()


def test_a_server_that_is_away_is_a_retryable_fault_in_one_line_without_the_password() -> None:
    with pytest.raises(StoreUnavailableError, match="refused") as caught:
        Store(f"postgresql://forgewatch:s3cret@127.0.0.1:{free_port()}/none")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
