import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from ingest.process.health import Disks, Heartbeat, serve_health

MAX_AGE_S = 1.0


def get(address, path):
    answer = httpx.get(address + path, trust_env=False, timeout=5)
    return answer.status_code, answer.text.strip()


def address_of(process):
    for line in process.stderr:
        event = json.loads(line)
        if event["event"] == "started":
            return str(event["health"])
    raise AssertionError("it ended before it had started")


@pytest.mark.slow
def test_a_stuck_loop_is_not_live_while_the_metrics_still_answer(spawn, tmp_path):
    stuck = tmp_path / "stuck"
    process = spawn(
        loop=f"Path('{stuck}').exists() and threading.Event().wait()",
        before=f"health.MAX_HEARTBEAT_AGE_S = {MAX_AGE_S}",
        FORGEWATCH_LOG_FORMAT="json",
    )
    address = address_of(process)
    began = time.monotonic()
    # A loop that goes on stays live for longer than the bound.
    while time.monotonic() - began < 2 * MAX_AGE_S:
        assert get(address, "/livez") == (200, "ok")
        assert get(address, "/readyz") == (200, "ok")
    stuck.touch()
    while get(address, "/livez")[0] == 200:
        assert time.monotonic() - began < 30
    for probe in ("/livez", "/readyz"):
        status, why = get(address, probe)
        assert status == 503
        assert why.startswith("the loop has been silent for ")
    assert get(address, "/metrics")[0] == 200


@pytest.mark.slow
def test_what_keeps_the_loop_from_its_work_makes_it_unready_and_leaves_it_live():
    heartbeat = Heartbeat(max_age_s=60)
    with serve_health("127.0.0.1", 0, heartbeat) as address:
        assert get(address, "/readyz") == (503, "it is starting")
        assert get(address, "/livez") == (200, "ok")
        heartbeat.beat("no release is\nserved yet")
        assert get(address, "/readyz") == (503, "no release is served yet")
        assert get(address, "/livez") == (200, "ok")
        heartbeat.beat()
        assert get(address, "/readyz") == (200, "ok")


@pytest.mark.slow
def test_a_start_that_hangs_is_not_live_for_ever():
    assert Heartbeat(max_age_s=60).silence_problem() is None
    assert Heartbeat(max_age_s=-1).silence_problem() is not None


@pytest.mark.slow
def test_readiness_asks_the_check_each_time():
    said = ["no database", None]
    heartbeat = Heartbeat(max_age_s=60)
    heartbeat.beat()
    with serve_health("127.0.0.1", 0, heartbeat, lambda: said.pop(0)) as address:
        assert get(address, "/readyz") == (503, "no database")
        assert get(address, "/readyz") == (200, "ok")


@pytest.mark.slow
def test_the_metrics_are_those_of_the_registry_and_other_paths_are_named():
    registry = CollectorRegistry()
    Counter("forgewatch_test", "A count.", registry=registry).inc(7)
    with serve_health("127.0.0.1", 0, Heartbeat(60), registry=registry) as address:
        assert "forgewatch_test_total 7.0" in get(address, "/metrics")[1]
        assert get(address, "/") == (404, "there are /livez, /readyz and /metrics")


@pytest.mark.slow
@pytest.mark.skipif(not socket.has_ipv6, reason="the host has no IPv6")
def test_an_ipv6_address_is_served():
    with serve_health("::1", 0, Heartbeat(60)) as address:
        assert get(address, "/livez") == (200, "ok")


@pytest.mark.slow
def test_a_taken_port_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: Address already in use"),
            serve_health("127.0.0.1", port, Heartbeat(60)),
        ):
            pass


def ask(url):
    done = subprocess.run(
        [sys.executable, "-m", "ingest.process.probe", url], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_what_keeps_a_process_from_its_work_is_said_and_fails_the_probe():
    heartbeat = Heartbeat(60)
    with serve_health("127.0.0.1", 0, heartbeat) as address:
        heartbeat.beat("no release is served yet")
        assert ask(f"{address}/readyz") == (1, "no release is served yet\n")
        heartbeat.beat()
        assert ask(f"{address}/readyz") == (0, "ok\n")


def test_a_process_that_does_not_answer_fails_the_probe_with_the_reason():
    code, said = ask("http://127.0.0.1:1/readyz")
    assert code == 1
    assert said == "http://127.0.0.1:1/readyz does not answer: [Errno 111] Connection refused\n"


def test_a_folder_shows_the_room_of_its_file_system_before_it_is_made(tmp_path):
    registry = CollectorRegistry()
    registry.register(Disks({"work": tmp_path / "not" / "yet", "database": None}))
    usage = shutil.disk_usage(tmp_path)
    sizes, frees = samples(registry, "size"), samples(registry, "free")
    assert [*sizes.values()] == [usage.total]
    ((volume, disk),) = frees
    assert volume == "work"
    assert Path(disk.partition(":")[2]).is_mount()
    assert abs(frees[volume, disk] - usage.free) < 2**30


def samples(registry, kind):
    (metric,) = (each for each in registry.collect() if each.name == f"forgewatch_ingest_disk_{kind}_bytes")
    return {(each.labels["volume"], each.labels["disk"]): each.value for each in metric.samples}


def test_a_folder_that_cannot_be_looked_at_leaves_the_others_their_samples(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    registry = CollectorRegistry()
    registry.register(Disks({"index": tmp_path / "loop" / "index", "tmp": tmp_path}))
    assert "tmp" in [volume for volume, _ in samples(registry, "size")]
