"""The deploy server's loop beats as long as a request can be answered, and no longer."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from deploy.server.process import Server, serve
from ingest.process.frame import Process
from ingest.process.health import Heartbeat
from ingest.process.settings import ProcessSettings

pytestmark = pytest.mark.slow

MAX_AGE_S = 1.5
THREADS = 40
"""Of the pool that answers requests, as the server's library sets it."""


@pytest.fixture
def process() -> Process:
    made = Process(ProcessSettings())
    made.heartbeat = Heartbeat(MAX_AGE_S)
    return made


@pytest.fixture
def blocked(process: Process) -> Iterator[tuple[str, threading.Event]]:
    """A server whose one answer waits for the event; its address, and the event."""
    app, free = FastAPI(), threading.Event()

    @app.get("/")
    def answer() -> str:
        free.wait(60)
        return "done"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=lambda: asyncio.run(serve(server, listener, process)))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", free
        finally:
            free.set()
            process.stop.set()
            thread.join(30)
            assert not thread.is_alive()


def test_a_server_that_can_answer_nothing_any_more_is_stuck(
    process: Process, blocked: tuple[str, threading.Event]
) -> None:
    address, free = blocked
    with ThreadPoolExecutor(THREADS) as clients:
        asked = [clients.submit(httpx.get, address, timeout=60) for _ in range(THREADS - 1)]
        until = time.monotonic() + 2 * MAX_AGE_S
        while time.monotonic() < until:  # one thread is left, and that is enough
            assert process.heartbeat.stuck() is None
        asked.append(clients.submit(httpx.get, address, timeout=60))
        until = time.monotonic() + 120
        while process.heartbeat.stuck() is None:
            assert time.monotonic() < until
        free.set()
        assert {each.result().status_code for each in asked} == {200}
        while process.heartbeat.stuck() is not None:
            assert time.monotonic() < until
