"""`python -m detector` on a real broker: alive and not ready before there is a release, and told to stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from deploy.layouts import all_topics
from ingest.kafka.topics import ensure_topics
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

Start = Callable[[], tuple["subprocess.Popen[str]", dict[str, Any]]]


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


@pytest.fixture
def start(broker: str, tmp_path: Any, group: str) -> Iterator[Start]:
    """Start a detector and wait until it says that it has started; gives it, and what it said."""
    ingest = IngestSettings(bootstrap_servers=broker)
    ensure_topics(ingest, all_topics(ingest, 2))
    environment = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_DETECTOR_GROUP_ID": group,
        "FORGEWATCH_DETECTOR_METRICS_PORT": "0",
        "FORGEWATCH_DETECTOR_MODEL_STORE_DIR": str(tmp_path),
        "FORGEWATCH_LOG_FORMAT": "json",
    }
    processes = []

    def begin() -> tuple["subprocess.Popen[str]", dict[str, Any]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "detector"],
            env=os.environ | environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if (event := json.loads(line))["event"] == "started":
                return process, event
        raise AssertionError("it did not start")

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_it_lives_and_is_not_ready_before_a_release_is_there_and_ends_with_0(start: Start) -> None:
    process, event = start()
    deadline = time.monotonic() + 120
    while (ready := httpx.get(f"{event['health']}/readyz")).text != "no release is served yet\n":
        assert time.monotonic() < deadline, ready.text
    assert ready.status_code == 503
    assert httpx.get(f"{event['health']}/livez").status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_workers_of_one_host_have_transactional_ids_of_their_own_that_last(start: Start, group: str) -> None:
    (first, one), (_, other) = start(), start()
    ids = [f"{group}-{socket.gethostname()}-{number}" for number in (0, 1)]
    assert [one["transactional_id"], other["transactional_id"]] == ids
    first.kill()
    first.wait()
    assert start()[1]["transactional_id"] == ids[0]
