"""The metrics and the health of every process of a running stack."""

import shutil
import subprocess
import time

import httpx
import pytest

from deploy.local.stack import Stack

pytestmark = pytest.mark.system


ROOMS = ("detector", "memory", "updater", "deploy")


@pytest.mark.parametrize("room", ROOMS)
def test_every_process_lives_and_is_ready_once_a_release_is_live(stack: Stack, live: str, room: str) -> None:
    port = stack.settings[f"FORGEWATCH_{room.upper()}_METRICS_PORT"]
    await_ready(port)
    assert httpx.get(f"http://127.0.0.1:{port}/livez").text == "ok\n"


def await_ready(port: str) -> None:
    deadline = time.monotonic() + 60
    while (answer := httpx.get(f"http://127.0.0.1:{port}/readyz")).status_code != 200:
        assert time.monotonic() < deadline, answer.text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("room", ROOMS)
def test_promtool_finds_nothing_wrong_with_the_metrics(stack: Stack, live: str, room: str) -> None:
    port = stack.settings[f"FORGEWATCH_{room.upper()}_METRICS_PORT"]
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").content
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
