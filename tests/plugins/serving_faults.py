"""What befalls the TorchServe of a stack: answers on the way to its worker, and processes that are killed."""

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import httpx
import psutil

from deploy.local.processes import Daemon
from deploy.local.stack import Stack, launch_room
from detector.serving.torchserve import RELEASE_HEADER

_WITHOUT = str(Path(__file__).with_name("without.py"))

Answer = Literal["slow", "503", "507", "cut"]


class Proxy:
    """Stands between a worker and its TorchServe's inference; what `answer` says befalls each request."""

    def __init__(self, url: str) -> None:
        self.answer: Answer | None = None
        self.slow_s = 0.5
        self.answered = 0
        self._going = threading.Event()
        client = self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body, answer = self.rfile.read(int(self.headers["content-length"])), proxy.answer
                if answer == "slow":
                    proxy._going.wait(proxy.slow_s)
                with suppress(OSError):
                    if answer in ("503", "507"):
                        self._say(int(answer), json.dumps({"message": "not now"}).encode(), {})
                    elif answer == "cut":
                        self.close_connection = True
                    else:
                        self._forward(body)

            def _forward(self, body: bytes) -> None:
                headers = {"content-type": self.headers["content-type"]}
                try:
                    reply = client.post(self.path, content=body, headers=headers)
                except httpx.TransportError:
                    self.close_connection = True
                else:
                    named = reply.headers.get(RELEASE_HEADER)
                    self._say(reply.status_code, reply.content, {RELEASE_HEADER: named} if named else {})

            def _say(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                proxy.answered += 1

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._going.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._client.close()

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[None]:
        self.answer = answer
        try:
            yield
        finally:
            self.answer = None


@contextmanager
def killed_again_and_again(processes: Callable[[], Iterable[psutil.Process]]) -> Iterator[list[int]]:
    """Kill what there is of these, as often as it comes back; gives the ids of those killed."""
    stop, killed = threading.Event(), list[int]()

    def kill() -> None:
        while not stop.wait(0.05):
            for process in processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                    killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        stop.set()
        killer.join()


def model_workers(torchserve: int) -> list[psutil.Process]:
    """The processes that run models for the TorchServe of this id; none where it is gone."""
    found = []
    for process in family(torchserve)[1:]:
        with suppress(psutil.NoSuchProcess):
            if any("model_service_worker" in part for part in process.cmdline()):
                found.append(process)
    return found


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started; none where it is gone, or the id is 0."""
    with suppress(psutil.NoSuchProcess):
        if not pid:
            return []
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def still_run(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Which of these have not ended; a zombie has."""
    left = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


def rss_bytes(pid: int) -> int:
    """What a process and all that it started have in memory, bytes."""
    total = 0
    for each in family(pid):
        with suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total


@contextmanager
def launched(
    stack: Stack, room: str, settings: Mapping[str, str] | None = None, without: str | None = None
) -> Iterator[None]:
    """A room's process with other settings, or without a defence (without.py); at the end as before."""
    command = [sys.executable, "-P", *(["-m"] if without is None else [_WITHOUT, without]), room]
    first = ["env", *(f"{name}={value}" for name, value in (settings or {}).items())]
    try:
        launch(stack, room, [*first, *command])
        yield
    finally:
        launch_room(stack.supervisor, stack.run, room)


def launch(stack: Stack, room: str, command: list[str]) -> Daemon:
    """Start a room's process anew, by this command."""
    folder = stack.run / room
    return stack.supervisor.launch(room, command, log=folder / f"{room}.log", folder=folder)


def metric(port: int, name: str) -> float:
    """The sum of a metric's samples, whatever their labels; 0 while the process does not answer."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30, trust_env=False).text
    except httpx.TransportError:
        return 0
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.split("{")[0].split()[0] == name)
