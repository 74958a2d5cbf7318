"""TorchServe as a container starts it: the process itself, without a container around it."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import psutil
import pytest
from serving_faults import still_run

from deploy.local.processes import PortTakenError, ProcessDiedError, alive, free_port
from deploy.local.torchserve import answers, start_torchserve
from detector.serving import torchserve_launch

pytestmark = pytest.mark.system

MOST_S = 30.0


"""What a container has to end in."""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path):
    """Start `python -m detector.serving.torchserve_launch` with its sockets in the test's folder."""
    processes = []

    def begin(**settings):
        own = {
            "FORGEWATCH_LOG_FORMAT": "json",
            "FORGEWATCH_DETECTOR_TORCHSERVE_URL": f"http://127.0.0.1:{free_port()}",
            "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL": f"unix:{tmp_path}/run/management.sock",
            "FORGEWATCH_DETECTOR_MODEL_STORE_DIR": str(tmp_path / "store"),
            "TMPDIR": str(tmp_path),
        }
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "detector.serving.torchserve_launch"],
                env=environment | own | settings,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        for each in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            each.kill()
        process.kill()
        process.communicate()


def await_started(process):
    assert process.stderr is not None
    for line in process.stderr:
        for event in events([line]):
            if event["event"] == "started":
                return event
    raise AssertionError("it ended before it had started")


def await_answers(event):
    while not answers(event["inference"], f"unix:{event['sockets']}/management.sock"):
        pass


def said(process):
    _, lines = process.communicate(timeout=180)
    return events(lines.splitlines())


def events(lines):
    """What the process itself logs; the JVM has a word of its own to say on the same stream."""
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("FORGEWATCH_DETECTOR_TORCHSERVE_URL", "http://torchserve:8080"),
        ("FORGEWATCH_DETECTOR_TORCHSERVE_URL", "http://127.0.0.1:99999"),
        ("FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL", "http://127.0.0.1:8081"),
        ("FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL", "unix:management.sock"),
        ("FORGEWATCH_DETECTOR_MODEL_THREADS", "many"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it_and_2(start, setting, value):
    process = start(**{setting: value})
    (event,) = said(process)
    assert (process.returncode, event["event"], event["setting"]) == (2, "wrong setting", setting)


@pytest.mark.bar("K2")
def test_it_answers_over_sockets_that_a_killed_one_left_and_ends_with_0_when_told(start, tmp_path, bar):
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "run" / "management.sock"))
    turns, longest_s = bar.times(1, 20), 0.0
    for _ in range(turns):
        process = start()
        await_answers(await_started(process))
        children, told_s = psutil.Process(process.pid).children(recursive=True), time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert [event["event"] for event in said(process)] == ["told to stop"]
        longest_s = max(longest_s, time.monotonic() - told_s)
        assert process.returncode == 0
        assert not still_run(children)
    print(f"{turns} times, longest {longest_s:.1f} s")
    bar.count(turns)
    assert longest_s < MOST_S


def test_a_server_that_ends_by_itself_ends_the_container_with_1(start):
    process = start()
    await_started(process)
    psutil.Process(process.pid).children()[0].kill()
    (event,) = said(process)
    assert "TorchServe ended by itself with status -9" in event["error"]
    assert process.returncode == 1


def ask(server, path):
    transport = httpx.HTTPTransport(uds=server.management.removeprefix("unix:"))
    with httpx.Client(transport=transport, base_url="http://torchserve") as client:
        return client.get(path)


def test_an_empty_server_answers_and_has_no_model(torchserve):
    assert httpx.get(f"{torchserve.inference_url}/ping").json() == {"status": "Healthy"}
    assert ask(torchserve, "/models").is_success


def test_management_listens_nowhere_but_in_a_folder_of_this_user(torchserve):
    assert stat.S_IMODE(torchserve.sockets.stat().st_mode) == 0o700
    for connection in psutil.Process(torchserve.process.pid).net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            assert connection.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"
    assert httpx.get(f"{torchserve.inference_url}/models").status_code != 200


def test_two_servers_do_not_meet_and_stopping_one_leaves_the_other(torchserve, tmp_path, capfd):
    second = start_torchserve(tmp_path)
    assert second.port != torchserve.port
    second.stop()
    assert not alive(second.process)
    assert not second.sockets.exists()
    assert answers(torchserve.inference_url, torchserve.management)
    assert capfd.readouterr() == ("", "")


def test_a_folder_too_deep_for_a_socket_is_no_hindrance(tmp_path):
    deep = start_torchserve(tmp_path / ("deep" * 25))
    try:
        assert len(os.fsencode(deep.sockets)) < 90
        assert ask(deep, "/models").is_success
    finally:
        deep.stop()
    assert not deep.sockets.exists()


def test_a_port_that_is_taken_is_told_before_anything_starts(torchserve, tmp_path):
    with pytest.raises(PortTakenError, match=rf"port {torchserve.port} "):
        start_torchserve(tmp_path / "torchserve", torchserve.port)
    assert not (tmp_path / "torchserve").exists()


def test_a_server_that_dies_is_told_with_its_own_words_and_leaves_no_socket(tmp_path, monkeypatch):
    monkeypatch.setattr(torchserve_launch, "_PROPERTIES", "inference_address=http://nowhere:many\n")
    with pytest.raises(ProcessDiedError, match=r"(?s)torchserve ended.*http://nowhere:many"):
        start_torchserve(tmp_path)
    assert not (tmp_path / "tmp").exists()
