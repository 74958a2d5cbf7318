import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.environment import load_stack_environment, read_environment
from deploy.local.broker import cluster_id
from deploy.local.processes import session
from deploy.local.prometheus import program_path
from deploy.local.record import read_record
from deploy.local.stack import Stack

pytestmark = pytest.mark.system

FORGEWATCH = Path(sys.executable).parent / "forgewatch"


@pytest.fixture
def home(tmp_path, kafka_cache):
    """The .forgewatch of a fresh folder, with the jars that were fetched before."""
    folder = tmp_path / ".forgewatch"
    folder.mkdir()
    (folder / "cache").symlink_to(kafka_cache, target_is_directory=True)
    return folder


def command(*arguments, folder):
    return subprocess.run([FORGEWATCH, *arguments], cwd=folder, capture_output=True, text=True, timeout=240)


def ended_not(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_up_leaves_a_stack_running_down_keeps_what_it_holds_and_a_purge_leaves_nothing(home, monkeypatch):
    up = command("up", "--empty", folder=home.parent)
    try:
        assert (up.returncode, up.stderr) == (0, ""), up.stderr
        record = read_record(home / "stack.json")
        assert record is not None
        supervisor = record.supervisor()
        assert [kept.name for kept in supervisor.states() if kept.runs] == [
            *("broker", "deploy", "torchserve", "memory", "updater", "detector"),
            *(["prometheus"] if program_path() else []),
        ]
        processes = session(supervisor.process)
        assert len(processes) > 6

        with monkeypatch.context() as context:
            for name in [name for name in os.environ if name.startswith("FORGEWATCH_")]:
                context.delenv(name)
            before = set(os.environ)
            load_stack_environment(home / "stack.env")
            variables = {name: os.environ.pop(name) for name in set(os.environ) - before}
        cluster = cluster_id(variables["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
        assert cluster is not None
        assert httpx.get(f"{variables['FORGEWATCH_DEPLOY_URL']}/healthz").is_success
        for room in ("DETECTOR", "MEMORY", "UPDATER", "DEPLOY"):
            port = variables[f"FORGEWATCH_{room}_METRICS_PORT"]
            assert httpx.get(f"http://127.0.0.1:{port}/metrics").is_success

        url = variables.get("FORGEWATCH_DEPLOY_PROMETHEUS_URL")
        assert (url is not None) == (program_path() is not None)
        assert (url or "apt-get install prometheus") in up.stdout
        assert url is None or httpx.get(f"{url}/-/ready").is_success
        while url and "<bdi>loading" in (now := httpx.get(f"{variables['FORGEWATCH_DEPLOY_URL']}/").text):
            time.sleep(0.1)
        assert url is None or "Prometheus is not configured" not in now

        again = command("up", "--empty", folder=home.parent)
        assert (again.returncode, again.stderr) == (0, "")
        assert "runs here already" in again.stdout
        assert read_record(home / "stack.json") == record

        (memory,) = [kept.pid for kept in supervisor.states() if kept.name == "memory"]
        os.kill(memory, signal.SIGKILL)
        while not any(kept.restarts and kept.runs for kept in supervisor.states()):
            time.sleep(0.1)
        told = command("status", "--json", folder=home.parent)
        assert told.returncode == 0, told.stderr
        whys = {kept["name"]: kept["why"] for kept in json.loads(told.stdout)["kept_alive"]}
        assert whys == {**dict.fromkeys(whys), "memory": "terminated by SIGKILL"}
        assert command("token", "add", "ada", "--role", "admin", folder=home.parent).returncode == 0
        down = command("down", folder=home.parent)
        assert (down.returncode, down.stderr) == (0, "")
        assert not any(ended_not(process) for process in processes)
        assert sorted(path.name for path in home.iterdir()) == ["cache", "run"]

        up = command("up", "--empty", folder=home.parent)
        assert (up.returncode, up.stderr) == (0, ""), up.stderr
        settings = read_environment(home / "stack.env")
        assert cluster_id(settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"]) == cluster
        assert httpx.get(f"{settings['FORGEWATCH_DEPLOY_URL']}/status").status_code == 401
    finally:
        refused = command("down", "--purge", folder=home.parent)  # nobody is there to answer
        purged = command("down", "--purge", "--yes", folder=home.parent)
    assert (refused.returncode, purged.returncode, purged.stderr) == (130, 0, "")
    assert [path.name for path in home.iterdir()] == ["cache"]


class Answers(BaseHTTPRequestHandler):
    """A stranger's server, which says 200 to everything."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_ports_that_are_lost_while_a_stack_comes_up_are_chosen_anew(tmp_path, kafka_cache):
    stack = Stack(tmp_path, cache=kafka_cache)
    lost, ended = (stack.ports.torchserve, stack.ports.updater_metrics), threading.Event()

    def take(port):
        while not stack.record_path.exists():
            time.sleep(0.02)
        with ThreadingHTTPServer(("127.0.0.1", port), Answers) as server:
            threading.Thread(target=server.serve_forever).start()
            ended.wait()
            server.shutdown()

    strangers = [threading.Thread(target=take, args=(port,)) for port in lost]
    for stranger in strangers:
        stranger.start()
    try:
        with stack:
            assert not {stack.ports.torchserve, stack.ports.updater_metrics} & set(lost)
            settings = read_environment(stack.environment_path)
            assert settings["FORGEWATCH_DETECTOR_TORCHSERVE_URL"].endswith(f":{stack.ports.torchserve}")
            assert settings["FORGEWATCH_UPDATER_METRICS_PORT"] == str(stack.ports.updater_metrics)
    finally:
        ended.set()
        for stranger in strangers:
            stranger.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_comes_up_leaves_nothing(home, number):
    up = subprocess.Popen(
        [FORGEWATCH, "up", "--empty"],
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell that runs the tests in the background lets its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (record := read_record(home / "stack.json")) and up.poll() is None:
        time.sleep(0.05)
    assert record is not None
    up.send_signal(number)
    up.communicate(timeout=180)
    assert up.returncode == 128 + number
    assert session(record.supervisor().process) == set()
    assert [path.name for path in home.iterdir()] == ["cache"]
