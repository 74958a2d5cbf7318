"""The metrics of every process of a running stack."""

import shutil
import subprocess

import httpx
import pytest

from deploy.local.stack import Stack

pytestmark = pytest.mark.system


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("room", ["detector", "memory", "updater", "deploy"])
def test_promtool_finds_nothing_wrong_with_the_metrics(stack: Stack, live: str, room: str) -> None:
    port = stack.settings[f"FORGEWATCH_{room.upper()}_METRICS_PORT"]
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").content
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
