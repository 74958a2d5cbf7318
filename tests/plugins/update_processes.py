"""Processes that carry updates out: started by tests, awaited, and killed with all that they started."""

import contextlib
import time
from typing import TypeVar

import httpx
import psutil
import pytest

from updater.records import Candidate

T = TypeVar("T")


@pytest.fixture
def table_of():
    from memory.database import open_engine
    from updater.runs import RunTable

    with contextlib.ExitStack() as ends:

        def table_of(environment):
            engine = open_engine(environment["FORGEWATCH_UPDATER_DATABASE_URL"])
            ends.callback(engine.dispose)
            return RunTable(engine, lease_s=2, max_takeovers=1000)

        yield table_of


@pytest.fixture
def start_process():
    with contextlib.ExitStack() as ends:

        def start_process(command, environment):
            process = psutil.Popen(command, env=environment)
            ends.callback(kill, process)
            return process

        yield start_process


def kill(process):
    """End a process and all that it started at once, as the kernel ends what is in a pod."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            one.kill()
    process.wait()


def awaited(found, process, timeout_s=300):
    """Poll until what is found is true, as long as the process lives; return that."""
    deadline = time.monotonic() + timeout_s
    while not (value := found()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def approve(url, digest):
    (found,) = [
        Candidate.model_validate(one["candidate"])
        for one in httpx.get(f"{url}/releases").json()
        if one["candidate"]["digest"] == digest
    ]
    httpx.post(
        f"{url}/releases/{digest}/approve",
        json={
            "evaluation_digest": found.evaluation_digest,
            "accept": {gate.name: "a test's few items" for gate in found.findings},
        },
        headers={"X-Forgewatch-Actor": "ann"},
    ).raise_for_status()
