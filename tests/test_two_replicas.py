"""Two replicas of each process that start at once on PostgreSQL, and the command that makes the tables."""

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from deploy.cli.main import main
from deploy.local.processes import free_port
from memory import database as module

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ROOMS = ("memory", "updater", "deploy")
PACKAGES = ("memory.migrations", "updater.migrations", "deploy.releases.migrations")
LAYOUTS = {
    room: max(path.name[1:5] for path in (ROOT / package.replace(".", "/") / "versions").glob("v*.py"))
    for room, package in zip(ROOMS, PACKAGES, strict=True)
}


NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9000", "{}"


def upgrade():
    op.add_column("offsets", sa.Column("more", sa.Text))
"""


@pytest.fixture
def url(postgresql_url, monkeypatch, tmp_path):
    """An empty schema, which every room's settings name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORGEWATCH_INGEST_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("FORGEWATCH_LOG_FORMAT", "json")
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PORT", "0")
    for room in ROOMS:
        monkeypatch.setenv(f"FORGEWATCH_{room.upper()}_DATABASE_URL", postgresql_url)
        monkeypatch.setenv(f"FORGEWATCH_{room.upper()}_METRICS_PORT", "0")
    return postgresql_url


@pytest.fixture
def engine(url):
    opened = create_engine(url)
    yield opened
    opened.dispose()


def layouts(engine):
    with engine.connect() as connection:
        return {
            room: connection.execute(text(f"SELECT version_num FROM {room}_layout")).scalar_one()
            for room in ROOMS
        }


def starts(process):
    return any(json.loads(line)["event"] == "started" for line in process.stderr)


@pytest.mark.system
def test_two_replicas_of_each_process_start_at_once(engine, fork, tmp_path):
    processes = [fork(ROOT / room / "__main__.py", os.environ, cwd=tmp_path) for room in (*ROOMS, *ROOMS)]
    with ThreadPoolExecutor(len(processes)) as pool:
        assert all(pool.map(starts, processes))
    for process in processes:
        process.kill()
        process.wait()
    assert layouts(engine) == LAYOUTS
    with engine.connect() as connection:
        ids = connection.execute(text("SELECT count(*) FROM deploy_ledger_identity")).scalar_one()
        revisions = connection.execute(text("SELECT count(*) FROM revision")).scalar_one()
    assert (ids, revisions) == (1, 1)


def test_migrate_says_what_it_did_and_does_nothing_the_second_time(engine, url, capsys):
    assert main(["migrate"]) == 0
    first = capsys.readouterr().out.splitlines()
    assert main(["migrate"]) == 0
    second = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in first] == [
        f"{room}: layout {layout} made from an empty database" for room, layout in LAYOUTS.items()
    ]
    assert [line.split(" (")[0] for line in second] == [
        f"{room}: layout {layout} is there already" for room, layout in LAYOUTS.items()
    ]
    assert layouts(engine) == LAYOUTS


def test_migrate_makes_the_tables_of_an_empty_database_whoever_else_does_it_too(engine, url):
    commands = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from deploy.cli.main import main; sys.exit(main(['migrate']))",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=180)[0] for process in commands]
    assert [process.returncode for process in commands] == [0, 0]
    made = [line for text_ in said for line in text_.splitlines() if "made from an empty database" in line]
    assert sorted(line.split(":")[0] for line in made) == sorted(ROOMS)
    assert layouts(engine) == LAYOUTS


def test_migrate_that_cannot_says_why_in_one_line_and_1(engine, url, monkeypatch, capsys):
    assert main(["migrate"]) == 0
    with engine.begin() as connection:
        connection.execute(text("UPDATE updater_layout SET version_num = '9999'"))
    capsys.readouterr()
    assert main(["migrate"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "FORGEWATCH_UPDATER_DATABASE_URL" in line
    assert "newer Forgewatch" in line
    away = f"postgresql://forgewatch:s3cret@127.0.0.1:{free_port()}/x"
    monkeypatch.setenv("FORGEWATCH_MEMORY_DATABASE_URL", away)
    assert main(["migrate"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "FORGEWATCH_MEMORY_DATABASE_URL" in line
    assert "s3cret" not in line
    monkeypatch.setenv("FORGEWATCH_MEMORY_DATABASE_URL", "nosuch://s3cret@x/y")
    assert main(["migrate"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "FORGEWATCH_MEMORY_DATABASE_URL" in line
    assert "s3cret" not in line


def test_a_process_that_holds_a_table_stops_a_migration_for_a_bounded_time_and_nothing_is_half_done(
    engine, url, tmp_path, monkeypatch, capsys
):
    assert main(["migrate"]) == 0
    before = layouts(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO offsets VALUES ('unknowns', 0, 7)"))
    (tmp_path / "v9000_next.py").write_text(NEXT.format(before["memory"]))
    config = module._config

    def next_config(connection, package):
        made = config(connection, package)
        if package == "memory.migrations":
            made.set_main_option(
                "version_locations", f"{made.get_main_option('version_locations')}\n{tmp_path}"
            )
        return made

    monkeypatch.setattr(module, "_config", next_config)
    monkeypatch.setattr(module, "_LOCK_WAIT_S", 1)
    held, free = threading.Event(), threading.Event()

    def hold():
        with engine.begin() as connection:
            connection.execute(text("SELECT * FROM offsets"))
            held.set()
            free.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    assert main(["migrate"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "lock timeout" in line
    free.set()
    holder.join()
    assert layouts(engine) == before
    assert main(["migrate"]) == 0
    assert layouts(engine) == before | {"memory": "9000"}
    with engine.connect() as connection:
        row = connection.execute(text("SELECT next_offset, more FROM offsets")).one()
    assert tuple(row) == (7, None)


# The processes that share the tests of a run.
PLUGINS = Path(__file__).parent / "plugins"
TEST = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(8))
def test_it(number):
    with pathlib.Path(os.environ["SEEN"]).open("a") as seen:
        seen.write(f"{__file__} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


def test_a_file_is_one_processs_and_what_shares_servers_too(tmp_path):
    for name in ("system/loop/test_a.py", "system/test_b.py", "test_c.py", "test_d.py", "test_e.py"):
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TEST)
    seen = tmp_path / "seen"
    command = [sys.executable, "-m", "pytest", "-p", "sharing", "-n2", "--dist=loadscope", "--rootdir=."]
    environment = os.environ | {"SEEN": str(seen), "PYTHONPATH": str(PLUGINS), "PYTEST_ADDOPTS": ""}
    options = ["--rootdir=.", "--import-mode=importlib", "--no-loadscope-reorder", "tests"]
    subprocess.run([*command, *options], cwd=tmp_path, env=environment, check=True, timeout=180)
    workers = defaultdict(set)
    for line in seen.read_text().splitlines():
        file, worker = line.split()
        workers["system" if "system" in Path(file).parts else file].add(worker)
    assert len(workers) == 4
    assert all(len(of_one) == 1 for of_one in workers.values())
    assert len(set.union(*workers.values())) == 2
