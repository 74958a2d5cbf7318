import hashlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlparse

import httpx
import psutil
import pytest
import requests
from jgo.maven import Artifact

from deploy.client.prometheus import PrometheusError, firing_alerts
from deploy.doctor.diagnosis import examine
from deploy.local import broker, prometheus
from deploy.local.broker import JarError
from deploy.local.processes import (
    Daemon,
    PortTakenError,
    ProcessDiedError,
    ProcessNotReadyError,
    alive,
    claim_port,
    free_port,
    last_lines,
    port_is_free,
    socket_folder,
    start,
    stop,
    wait_until,
)

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {code!r}]);"
    "print(child.pid, flush=True); time.sleep(600)"
)


@pytest.fixture
def launch(tmp_path):
    started = []

    def run(code, name="child"):
        child = start(
            name,
            [sys.executable, "-c", code],
            log=tmp_path / f"{name}.log",
            environment=dict(os.environ),
            folder=tmp_path,
        )
        started.append(child)
        return child

    yield run
    for child in reversed(started):
        stop(child, timeout_s=1)


def said(child):
    return bool(child.log.read_bytes().endswith(b"\n"))


def test_a_child_writes_to_its_log_and_not_to_the_terminal(launch, capfd):
    child = launch("import sys; print('out'); print('err', file=sys.stderr); import time; time.sleep(600)")
    wait_until(child, lambda: "err" in child.log.read_text(), 10)
    assert capfd.readouterr() == ("", "")


def test_a_stopped_child_is_gone_and_stopping_it_again_does_nothing(launch):
    child = launch(SLEEP)
    wait_until(child, lambda: said(child), 10)
    stop(child)
    assert not alive(child)
    stop(child)


def test_a_child_that_ignores_sigterm_is_killed(launch):
    child = launch(DEAF)
    wait_until(child, lambda: said(child), 10)
    stop(child, timeout_s=0.3)
    assert not alive(child)
    assert child.handle is not None
    assert child.handle.returncode == -signal.SIGKILL


@pytest.mark.parametrize("killed_first", [False, True])
def test_grandchildren_end_with_the_child_even_where_it_died_before(launch, killed_first):
    child = launch(PARENT.format(code=DEAF))
    wait_until(child, lambda: child.log.read_text().count("\n") == 2, 10)
    grandchild = psutil.Process(next(int(line) for line in child.log.read_text().split() if line.isdigit()))
    if killed_first:
        os.kill(child.pid, signal.SIGKILL)
        wait_until(replace(child, pid=grandchild.pid), lambda: not alive(child), 10)
    stop(child, timeout_s=0.3)
    # Where the container has no init that reaps, an ended orphan stays as a zombie.
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_a_stranger_that_got_the_childs_id_is_not_touched(launch):
    stranger = launch(SLEEP)
    remembered = Daemon("child", stranger.pid, stranger.created_s - 60, stranger.log)
    assert not alive(remembered)
    stop(remembered, timeout_s=0.3)
    assert alive(stranger)
    # The control: the same call with the true start time does end it.
    stop(replace(remembered, created_s=stranger.created_s), timeout_s=5)
    assert not alive(stranger)


def test_a_child_of_an_earlier_run_is_stopped_by_its_record_alone(launch):
    child = launch(SLEEP)
    stop(replace(child, handle=None), timeout_s=5)
    assert not alive(child)


def test_waiting_for_a_child_that_dies_raises_with_its_last_words(launch):
    child = launch("raise SystemExit('the port is taken')", name="broker")
    with pytest.raises(ProcessDiedError, match=r"(?s)broker ended with exit status 1.*the port is taken"):
        wait_until(child, lambda: False, 10)


def test_waiting_for_a_child_that_never_is_ready_raises_in_time(launch):
    with pytest.raises(ProcessNotReadyError, match=r"child was not ready within 0 s"):
        wait_until(launch(SLEEP), lambda: False, 0.2)


def test_a_command_that_does_not_exist_raises_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        start("x", [tmp_path / "nothing"], log=tmp_path / "log", environment={}, folder=tmp_path)


def test_last_lines_are_the_last_ones_and_name_the_log(tmp_path):
    log = tmp_path / "a.log"
    assert last_lines(log) == f"Its log is empty: {log}"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert last_lines(log, 2) == f"The end of {log}:\n  line 98\n  line 99"


def test_a_port_that_someone_listens_on_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_is_free(server.getsockname()[1])
        with pytest.raises(PortTakenError):
            claim_port(server.getsockname()[1])
    assert port_is_free(free_port())
    assert claim_port(server_port := free_port()) == server_port


def test_an_ended_child_is_dead_before_anyone_reaps_it(launch):
    child = replace(launch("pass"), handle=None)
    wait_until(launch(SLEEP, "other"), lambda: not alive(child), 10)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE


def test_a_ctrl_c_in_the_terminal_does_not_reach_a_child(launch):
    child = launch(SLEEP)
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    assert (
        subprocess.run(
            ["ps", "-o", "tty=", "-p", str(child.pid)], capture_output=True, text=True
        ).stdout.strip()
        == "?"
    )


SOCKETS = ("supervisor.sock.4194304", "management.sock", "metrics.sock", ".ts.sock.99999")


@pytest.mark.parametrize("longest_bytes", [106, 107, 108, 109])
def test_every_socket_has_a_path_that_the_kernel_takes(tmp_path_factory, longest_bytes):
    base = tmp_path_factory.mktemp("s")  # short: the length is made below
    # 107 bytes and a final zero byte fill the kernel's 108; one byte more binds nowhere.
    room = longest_bytes - len(os.fsencode(base)) - len("/") - len("/tmp/supervisor.sock.4194304")
    folder = base / ("d" * room)
    folder.mkdir()
    sockets = socket_folder(folder)
    try:
        assert all(len(os.fsencode(sockets / name)) <= 107 for name in SOCKETS)
        assert (sockets == folder / "tmp") == (longest_bytes <= 107)
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    finally:
        sockets.rmdir()


def test_the_sockets_of_a_server_that_was_killed_are_removed(tmp_path):
    (socket_folder(tmp_path) / "management.sock").touch()
    assert list(socket_folder(tmp_path).iterdir()) == []


# A real Prometheus with the rules, beside processes that are not there.
ROOMS = ("detector", "memory", "updater", "deploy")
needs_prometheus = pytest.mark.skipif(prometheus.program_path() is None, reason="Prometheus is not installed")


@dataclass
class Server:
    url: str
    folder: Path
    process: Daemon


@pytest.fixture
def server(tmp_path):
    """Prometheus, whose four processes are not there."""
    started = []

    def launch(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[0]

    rooms = {room: free_port() for room in ROOMS}
    url = prometheus.start_prometheus(tmp_path / "prometheus", free_port(), rooms, launch=launch)
    yield Server(url, tmp_path / "prometheus", started[0])
    stop(started[0])


def make_impatient(server):
    """As helm/forgewatch/rules/README.md says: shorten the stack's own copy, and have it read again."""
    path = server.folder / "rules" / "alerts.yaml"
    path.write_text(re.sub(r"for: [0-9]+[mh]", "for: 0s", path.read_text()))
    os.kill(server.process.pid, signal.SIGHUP)


@pytest.mark.slow
@needs_prometheus
def test_an_alert_fires_and_the_doctor_says_what_and_where_its_runbook_is(server, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROMETHEUS_URL", server.url)
    assert firing_alerts(server.url) == []
    quiet = examine("alerts")
    assert (quiet.ok, quiet.found) == (True, f"none fires at {server.url}")
    make_impatient(server)
    wait_until(server.process, lambda: len(firing_alerts(server.url)) == 4, 60)
    assert {alert.name for alert in firing_alerts(server.url)} == {"ForgewatchProcessAbsent"}
    found = examine("alerts")
    assert not found.ok
    assert "ForgewatchProcessAbsent: No detector has given its metrics" in found.found
    runbook = Path(urlparse(found.advice.removeprefix("read ")).path)
    assert runbook.name == "ForgewatchProcessAbsent.md"
    assert runbook.is_file()


@pytest.mark.slow
@needs_prometheus
def test_it_knows_the_four_processes_by_their_names(server):
    def instances():
        targets = httpx.get(f"{server.url}/api/v1/targets").json()["data"]["activeTargets"]
        return {target["labels"]["instance"] for target in targets}

    wait_until(server.process, lambda: instances() == set(ROOMS), 30)


@pytest.mark.slow
@needs_prometheus
def test_it_listens_on_loopback_and_cannot_be_ended_by_a_request(server):
    assert httpx.post(f"{server.url}/-/quit").status_code == 403
    assert httpx.post(f"{server.url}/-/reload").status_code == 403
    assert "--web.listen-address=127.0.0.1:" in Path(f"/proc/{server.process.pid}/cmdline").read_text()


@pytest.mark.slow
@needs_prometheus
def test_a_taken_port_is_told(server, tmp_path):
    taken = urlparse(server.url).port
    assert taken is not None
    with pytest.raises(PortTakenError):
        prometheus.start_prometheus(tmp_path / "second", taken, {})


@pytest.mark.slow
@needs_prometheus
def test_a_server_without_the_rules_is_no_witness(server):
    for path in (server.folder / "rules").iterdir():
        path.unlink()
    os.kill(server.process.pid, signal.SIGHUP)
    rules = f"{server.url}/api/v1/rules"
    wait_until(server.process, lambda: not httpx.get(rules).json()["data"]["groups"], 30)
    with pytest.raises(PrometheusError, match="has none of the rules"):
        firing_alerts(server.url)


def jar_path(cache, coordinate):
    group, name, version = coordinate.split(":")
    return cache.joinpath("maven", *group.split("."), name, version, f"{name}-{version}.jar")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(requests, "request", refuse)


def pin(monkeypatch, tmp_path, text):
    (lock := tmp_path / "kafka.lock").write_text(text)
    monkeypatch.setattr(broker, "_LOCK", lock)


EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.usefixtures("no_network")
def test_a_cached_jar_with_its_pinned_digest_needs_no_network(monkeypatch, tmp_path):
    pin(monkeypatch, tmp_path, f"org.example:thing:1.0 {EMPTY_SHA256}\n")
    jar = jar_path(tmp_path, "org.example:thing:1.0")
    jar.parent.mkdir(parents=True)
    jar.touch()
    counted = []
    assert broker.kafka_jars(tmp_path, lambda done, total: counted.append((done, total))) == [jar]
    assert counted == [(1, 1)]


@pytest.mark.usefixtures("no_network")
def test_half_a_jar_in_the_cache_is_thrown_away_and_asked_for_again(monkeypatch, tmp_path):
    pin(monkeypatch, tmp_path, f"org.example:thing:1.0 {EMPTY_SHA256}\n")
    jar = jar_path(tmp_path, "org.example:thing:1.0")
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"half")
    with pytest.raises(JarError, match=r"org\.example:thing:1\.0 could not be fetched: no network"):
        broker.kafka_jars(tmp_path)
    assert not jar.exists()


def test_of_two_that_fetch_into_an_empty_cache_at_once_one_waits_for_the_others_jars(monkeypatch, tmp_path):
    halves = [b"jar" * 100, b"more" * 100]
    pin(monkeypatch, tmp_path, f"org.example:thing:1.0 {hashlib.sha256(b''.join(halves)).hexdigest()}\n")
    jar, both, disturbed = (
        jar_path(tmp_path, "org.example:thing:1.0"),
        threading.Barrier(2),
        threading.Event(),
    )
    found_half = []

    def resolve(_self):
        if jar.exists():
            found_half.append(jar.read_bytes() == halves[0])
            disturbed.set()
        else:
            jar.parent.mkdir(parents=True, exist_ok=True)
            jar.write_bytes(halves[0])
            disturbed.wait(0.5)
            jar.write_bytes(b"".join(halves))
        return jar

    def fetch(_number):
        both.wait()
        return broker.kafka_jars(tmp_path)

    monkeypatch.setattr(Artifact, "resolve", resolve)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fetch, range(2))) == [[jar], [jar]]
    assert found_half == [False]


def test_the_lock_names_one_version_of_each_jar_with_a_digest():
    pins = [line.split() for line in broker._LOCK.read_text().splitlines()]
    assert all(len(pin) == 2 and len(pin[1]) == 64 for pin in pins)
    names = [pin[0].rsplit(":", 1)[0] for pin in pins]
    assert len(names) == len(set(names))
    assert "org.apache.kafka:kafka_2.13:4.1.0" in [pin[0] for pin in pins]
    # A resolver that takes another artifact's bill of materials for Kafka's picks an old client.
    assert {pin[0].rsplit(":", 1)[1] for pin in pins if "kafka" in pin[0]} == {"4.1.0"}
