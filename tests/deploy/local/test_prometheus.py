"""A real Prometheus with the rules, beside processes that are not there."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import httpx
import pytest

from deploy.client.prometheus import PrometheusError, firing_alerts
from deploy.doctor.diagnosis import examine
from deploy.local import prometheus
from deploy.local.processes import Daemon, PortTakenError, free_port, start, stop, wait_until

ROOMS = ("detector", "memory", "updater", "deploy")
needs_prometheus = pytest.mark.skipif(prometheus.program_path() is None, reason="Prometheus is not installed")
pytestmark = [pytest.mark.slow, needs_prometheus]


@dataclass
class Server:
    url: str
    folder: Path
    process: Daemon


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Prometheus, whose four processes are not there."""
    started: list[Daemon] = []

    def launch(*arguments: str, **options: object) -> Daemon:
        started.append(start(*arguments, **options))
        return started[0]

    rooms = {room: free_port() for room in ROOMS}
    url = prometheus.start_prometheus(tmp_path / "prometheus", free_port(), rooms, launch=launch)
    yield Server(url, tmp_path / "prometheus", started[0])
    stop(started[0])


def make_impatient(server: Server) -> None:
    """As helm/forgewatch/rules/README.md says: shorten the stack's own copy, and have it read again."""
    path = server.folder / "rules" / "alerts.yaml"
    path.write_text(re.sub(r"for: [0-9]+[mh]", "for: 0s", path.read_text()))
    os.kill(server.process.pid, signal.SIGHUP)


def test_an_alert_fires_and_the_doctor_says_what_and_where_its_runbook_is(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_it_knows_the_four_processes_by_their_names(server: Server) -> None:
    def instances() -> set[str]:
        targets = httpx.get(f"{server.url}/api/v1/targets").json()["data"]["activeTargets"]
        return {target["labels"]["instance"] for target in targets}

    wait_until(server.process, lambda: instances() == set(ROOMS), 30)


def test_it_listens_on_loopback_and_cannot_be_ended_by_a_request(server: Server) -> None:
    assert httpx.post(f"{server.url}/-/quit").status_code == 403
    assert httpx.post(f"{server.url}/-/reload").status_code == 403
    assert "--web.listen-address=127.0.0.1:" in Path(f"/proc/{server.process.pid}/cmdline").read_text()


def test_a_taken_port_is_told(server: Server, tmp_path: Path) -> None:
    taken = urlparse(server.url).port
    assert taken is not None
    with pytest.raises(PortTakenError):
        prometheus.start_prometheus(tmp_path / "second", taken, {})


def test_a_server_without_the_rules_is_no_witness(server: Server) -> None:
    for path in (server.folder / "rules").iterdir():
        path.unlink()
    os.kill(server.process.pid, signal.SIGHUP)
    rules = f"{server.url}/api/v1/rules"
    wait_until(server.process, lambda: not httpx.get(rules).json()["data"]["groups"], 30)
    with pytest.raises(PrometheusError, match="has none of the rules"):
        firing_alerts(server.url)
