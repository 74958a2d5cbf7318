import json
import os
import re
import signal
import socket
import stat
import sys
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from deploy.environment import read_environment
from deploy.local import commands
from deploy.local.processes import StackError, alive, socket_folder
from deploy.local.record import (
    StackRecord,
    free_ports,
    read_record,
    stack_settings,
    usable_ports,
    write_environment,
    write_record,
)
from deploy.local.supervisor import start_supervisor
from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

ROOMS = {
    "INGEST": IngestSettings,
    "DETECTOR": DetectorSettings,
    "MEMORY": MemorySettings,
    "UPDATER": UpdaterSettings,
    "DEPLOY": DeploySettings,
}


def settings_of_a_stack():
    return stack_settings(Path("/run"), free_ports(), "unix:/s", Path("/store"), {})


@pytest.fixture
def console():
    return Console(file=StringIO(), soft_wrap=True)


def said(console):
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.fixture
def running(tmp_path):
    """A supervisord with one process that sleeps, as a stack's are below its home."""
    folder = tmp_path / "supervisor"
    supervisor = start_supervisor(folder, socket_folder(tmp_path), dict(os.environ), lambda child: None)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    supervisor.launch("sleeper", command, log=tmp_path / "sleeper.log", folder=tmp_path)
    yield supervisor
    supervisor.stop()


def write_down(supervisor, home):
    record = StackRecord.of(supervisor.process, supervisor.folder, supervisor.sockets)
    write_record(home / "stack.json", record)
    return record


def test_free_ports_are_free_and_all_different():
    ports = asdict(free_ports()).values()
    assert len(set(ports)) == len(ports)


def test_a_taken_port_gives_way_to_a_free_one_and_is_told(console):
    wanted = free_ports()
    with socket.create_server(("127.0.0.1", wanted.deploy)):
        ports = usable_ports(wanted, console)
    assert ports.deploy not in asdict(wanted).values()
    assert ports == replace(wanted, deploy=ports.deploy)
    told = f"Port {wanted.deploy} (deploy) is taken by another process: {ports.deploy} instead.\n"
    assert said(console) == told


def test_every_variable_of_a_stack_is_a_setting_that_its_room_understands(monkeypatch):
    variables = settings_of_a_stack()
    for variable, value in variables.items():
        _, room, name = variable.split("_", 2)
        assert name.lower() in ROOMS[room].model_fields, variable
        monkeypatch.setenv(variable, value)
    for room in ROOMS.values():
        room()
    assert set(DeploySettings().health_urls) == {"detector", "memory", "updater"}


def test_no_state_of_a_stack_is_left_to_a_default_path():
    # A setting that points below the working folder would lie outside the stack's own folder.
    variables = settings_of_a_stack()
    for room, settings in ROOMS.items():
        for name, field in settings.model_fields.items():
            if ".forgewatch" in str(field.default):
                assert f"FORGEWATCH_{room}_{name.upper()}" in variables


def test_a_persons_tuning_is_kept_but_not_addresses_nor_another_brokers_credentials(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_UPDATER_SCHEDULE", "0 3 * * *")
    monkeypatch.setenv("FORGEWATCH_MEMORY_DATABASE_URL", "sqlite:////elsewhere")
    monkeypatch.setenv("FORGEWATCH_INGEST_SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("FORGEWATCH_INGEST_SASL_PASSWORD", "hidden")
    monkeypatch.setenv("FORGEWATCH_DEPLOY_TOKEN", "shared")
    monkeypatch.setenv("FORGEWATCH_INGEST_DECODE_PROCESSES", "7")
    variables = settings_of_a_stack()
    assert variables["FORGEWATCH_INGEST_DECODE_PROCESSES"] == "7"
    assert variables["FORGEWATCH_UPDATER_SCHEDULE"] == "0 3 * * *"
    assert variables["FORGEWATCH_MEMORY_DATABASE_URL"] == "sqlite:////run/memory/memory.sqlite"
    assert variables["FORGEWATCH_INGEST_SECURITY_PROTOCOL"] == "PLAINTEXT"
    assert "hidden" not in variables.values()
    assert "FORGEWATCH_DEPLOY_TOKEN" not in variables


def test_each_machine_of_a_stack_has_a_token_of_its_own():
    variables, others = settings_of_a_stack(), settings_of_a_stack()
    tokens = {variables[f"FORGEWATCH_DEPLOY_{room}_TOKEN"] for room in ("DETECTOR", "UPDATER")}
    assert tokens == {variables[f"FORGEWATCH_{room}_DEPLOY_TOKEN"] for room in ("DETECTOR", "UPDATER")}
    assert len(tokens | {others["FORGEWATCH_DETECTOR_DEPLOY_TOKEN"]}) == 3


def test_what_is_written_about_a_stack_is_read_again_and_is_for_its_user_alone(tmp_path):
    record = StackRecord(pid=7, created_s=1.25, log=tmp_path / "log", folder=tmp_path, sockets=tmp_path)
    write_record(tmp_path / "stack.json", record)
    write_environment(tmp_path / "stack.env", {"FORGEWATCH_B": "2", "FORGEWATCH_A": "x=y"})
    assert read_record(tmp_path / "stack.json") == record
    assert (tmp_path / "stack.env").read_text() == "FORGEWATCH_A=x=y\nFORGEWATCH_B=2\n"
    assert read_environment(tmp_path / "stack.env") == {"FORGEWATCH_A": "x=y", "FORGEWATCH_B": "2"}
    for name in ("stack.json", "stack.env"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stack.env", "stack.json"]


def test_a_record_that_cannot_be_understood_is_an_error_and_stays(tmp_path):
    (tmp_path / "stack.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(StackError, match=r"stack\.json does not list the processes here"):
        commands.down(tmp_path)
    assert (tmp_path / "stack.json").exists()


def test_down_where_nothing_runs_says_so(tmp_path, console):
    commands.down(tmp_path / "never", console)
    commands.down(tmp_path, console)
    assert said(console) == "Nothing runs here.\nNothing runs here.\n"


@pytest.mark.slow
@pytest.mark.parametrize("below", ["", "demo"])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("purge", [False, True])
def test_down_ends_what_is_written_down_and_keeps_a_stack_s_state_unless_told_to_purge(
    tmp_path, console, running, below, killed, purge
):
    home = tmp_path / "home"
    folder = home / below
    (folder / "run/broker").mkdir(parents=True)
    (folder / "run/broker/log").touch()
    (home / "cache").mkdir()
    (folder / "stack.env").touch()
    write_down(running, folder)
    sleeper = psutil.Process(running.states()[0].pid)
    if killed:
        leader = psutil.Process(running.process.pid)
        leader.kill()
        psutil.wait_procs([leader], timeout=10)
        assert not alive(running.process)
        assert sleeper.is_running()
    commands.down(home, console, purge=purge)
    assert not alive(running.process)
    assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE
    kept = not purge and not below
    assert [path for path in home.rglob("*") if path.is_file()] == [folder / "run/broker/log"] * kept
    assert (folder / "run").exists() == kept
    assert not running.sockets.exists()
    assert re.search(r"Stopped: \d processes", said(console))
    assert [f"{home / name} stays" in said(console) for name in ("run", "cache")] == [kept, True]


@pytest.mark.slow
def test_down_does_not_touch_a_stranger_that_got_a_recorded_id(tmp_path, console, running):
    stale = write_down(running, tmp_path).model_copy(
        update={"created_s": running.process.created_s - 3600, "sockets": tmp_path / "other"}
    )
    write_record(tmp_path / "stack.json", stale)
    commands.down(tmp_path, console)
    assert alive(running.process)
    assert running.states()[0].runs
    assert "Nothing runs here." in said(console)


def test_only_one_up_or_down_works_in_a_folder_at_a_time(tmp_path):
    with commands._alone(tmp_path):
        for command in (commands.up, commands.down):
            with pytest.raises(StackError, match="another forgewatch up or down is at work"):
                command(tmp_path)
    commands.down(tmp_path, Console(quiet=True))


@pytest.mark.slow
def test_up_says_that_a_stack_runs_already_and_starts_nothing(tmp_path, console, running):
    write_down(running, tmp_path)
    write_environment(tmp_path / "stack.env", settings_of_a_stack())
    before = running.states()
    commands.up(tmp_path, console)
    assert "runs here already" in said(console)
    assert "kcat -P -b 127.0.0.1:" in said(console)
    assert running.states() == before
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_stack_is_broken_when_a_part_or_its_supervisord_died_or_it_never_came_up(tmp_path, running):
    assert commands._problem_of_stack(tmp_path, running) == "it never came up whole"
    write_environment(tmp_path / "stack.env", settings_of_a_stack())
    assert commands._problem_of_stack(tmp_path, running) == ""
    os.kill(running.states()[0].pid, signal.SIGKILL)
    assert commands._problem_of_stack(tmp_path, running) == "", "it is being brought back"
    running.end("sleeper")
    assert commands._problem_of_stack(tmp_path, running) == "sleeper: stopped"
    running.stop()
    assert commands._problem_of_stack(tmp_path, running) == "its supervisord is dead"
