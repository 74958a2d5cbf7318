"""TorchServe as a container starts it: the process itself, without a container around it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.processes import free_port
from deploy.local.torchserve import answers

pytestmark = pytest.mark.system

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `python -m detector.serving.torchserve_container` with its sockets in the test's folder."""
    processes = []

    def begin(**settings: str) -> "subprocess.Popen[str]":
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
                [sys.executable, "-m", "detector.serving.torchserve_container"],
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


def await_started(process: "subprocess.Popen[str]") -> dict[str, str]:
    assert process.stderr is not None
    for line in process.stderr:
        for event in events([line]):
            if event["event"] == "started":
                return event
    raise AssertionError("it ended before it had started")


def await_answers(event: dict[str, str]) -> None:
    while not answers(event["inference"], f"unix:{event['sockets']}/management.sock"):
        pass


def said(process: "subprocess.Popen[str]") -> list[dict[str, str]]:
    _, lines = process.communicate(timeout=180)
    return events(lines.splitlines())


def events(lines: list[str]) -> list[dict[str, str]]:
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
def test_a_wrong_setting_is_one_line_that_names_it_and_2(start: Start, setting: str, value: str) -> None:
    process = start(**{setting: value})
    (event,) = said(process)
    assert (process.returncode, event["event"], event["setting"]) == (2, "wrong setting", setting)


def test_it_answers_over_sockets_that_a_killed_one_left_and_ends_with_0_when_told(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "run" / "management.sock"))
    process = start()
    await_answers(await_started(process))
    server = psutil.Process(process.pid).children()[0]
    process.send_signal(signal.SIGTERM)
    assert [event["event"] for event in said(process)] == ["told to stop"]
    assert process.returncode == 0
    assert not server.is_running()


def test_a_server_that_ends_by_itself_ends_the_container_with_1(start: Start) -> None:
    process = start()
    await_started(process)
    psutil.Process(process.pid).children()[0].kill()
    (event,) = said(process)
    assert "TorchServe ended by itself with status -9" in event["error"]
    assert process.returncode == 1
