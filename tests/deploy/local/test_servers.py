"""A real Prometheus with the rules, beside processes that are not there."""

import hashlib
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import httpx
import pytest
import requests
from jgo.maven import Artifact

from deploy.client.prometheus import PrometheusError, firing_alerts
from deploy.doctor.diagnosis import examine
from deploy.local import broker, prometheus
from deploy.local.broker import JarError
from deploy.local.processes import Daemon, PortTakenError, free_port, start, stop, wait_until

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
