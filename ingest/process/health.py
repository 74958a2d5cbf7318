"""Whether a process lives and does its work, over HTTP beside its metrics: /livez, /readyz, /metrics.

Both look at the heartbeat of the process's loop. The thread that answers goes on when the loop is stuck, so
it never says by itself that all is well.
"""

import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

_IDLE_CONNECTION_S = 10
_WAITING_CONNECTIONS = 32
# A loop that is silent for longer is stuck: no single wait of any process is as long.
MAX_HEARTBEAT_AGE_S = 300.0


class Heartbeat:
    """The last sign of life of a process's loop, made by the loop and read by any thread.

    The start of the process counts as a sign, so a start that hangs is not live for ever either.
    """

    def __init__(self, max_age_s: float | None = None) -> None:
        """max_age_s: how old the last beat may be; None: MAX_HEARTBEAT_AGE_S."""
        self._max_age_s = MAX_HEARTBEAT_AGE_S if max_age_s is None else max_age_s
        self._last: tuple[float, str | None] = time.monotonic(), "it is starting"
        # What keeps the process from its work until that succeeds, however often the loop beats meanwhile.
        self.standing: str | None = None

    def beat(self, problem: str | None = None) -> None:
        """Say that the loop goes on, and in one line its hindrance; None: it has none."""
        self._last = time.monotonic(), problem

    def silence_problem(self) -> str | None:
        """Give one line where the last beat is too long ago, else None."""
        age_s = time.monotonic() - self._last[0]
        if age_s <= self._max_age_s:
            return None
        return f"the loop has been silent for {age_s:.0f} s; {self._max_age_s:g} s are allowed"

    def hindrance(self) -> str | None:
        """Give in one line the loop's hindrance, being stuck included; None: it has none."""
        return self.silence_problem() or self._last[1] or self.standing


@dataclass(frozen=True)
class _Answers:
    """The WSGI application: each probe asked at each request."""

    probes: dict[str, Callable[[], str | None]]
    metrics: Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return self.metrics(environ, start)
        probe = self.probes.get(path)
        if probe is None:
            status, text = "404 Not Found", f"there are {', '.join(self.probes)} and /metrics"
        else:
            problem = probe()
            status, text = ("200 OK", "ok") if problem is None else ("503 Service Unavailable", problem)
        body = f"{' '.join(text.split())}\n".encode()
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]


class _HealthServer(ThreadingWSGIServer):
    """A thread a connection. Of those whose request is not here yet, the oldest makes room for new ones."""

    daemon_threads = True
    request_queue_size = 128  # of five, the sixth peer at once would wait a second or more

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._waiting: dict[Any, None] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread of its own."""
        if len(self._waiting) >= _WAITING_CONNECTIONS:
            oldest = next(iter(self._waiting))
            self.on_request(oldest)
            with suppress(OSError):  # its thread reads the end
                oldest.shutdown(socket.SHUT_RDWR)
        self._waiting[request] = None
        super().process_request(request, client_address)

    def on_request(self, request: Any) -> None:
        """Count a connection no longer: its request is here, or it ended."""
        self._waiting.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self.on_request(request)
        super().shutdown_request(request)


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_CONNECTION_S

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.on_request(self.connection)  # type: ignore[attr-defined]
        return parsed

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: every scrape and probe would be a line."""


@contextmanager
def serve_health(
    host: str,
    port: int,
    heartbeat: Heartbeat,
    check: Callable[[], str | None] | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> Iterator[str]:
    """Serve probes and metrics until left; yields the address, http://…, with the port taken for port 0.

    /livez answers 200 while the loop beats, /readyz while nothing keeps it from its work and `check`, asked
    at each request in a thread of its own, returns None. Else they answer 503 and one line that says why.
    Raises OSError where the address is taken or no address of this host.
    """

    def hindrance() -> str | None:
        return heartbeat.hindrance() or (check() if check else None)

    probes = {"/livez": heartbeat.silence_problem, "/readyz": hindrance}
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    server_class = type("_Server", (_HealthServer,), {"address_family": family})
    try:
        server: WSGIServer = make_server(
            host, port, _Answers(probes, make_wsgi_app(registry)), server_class, handler_class=_Handler
        )
    except OSError as error:
        raise OSError(f"cannot serve metrics at {host}:{port}: {error.strerror}") from error
    thread = Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        address = f"[{host}]" if family == socket.AF_INET6 else host
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Disks(Collector):
    """Free bytes and size of the file system under each folder, when scraped.

    folders are by what lies there, such as `database`; None is nothing on a disk of this host. A folder that
    is not made yet counts with the one above it. disk names the file system: host, and where it is mounted.
    """

    def __init__(self, folders: Mapping[str, Path | None]) -> None:
        self._folders = {volume: folder for volume, folder in folders.items() if folder is not None}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield both gauges, without the volumes whose file system does not answer."""
        free = GaugeMetricFamily("forgewatch_ingest_disk_free_bytes", "Free bytes", labels=["volume", "disk"])
        size = GaugeMetricFamily("forgewatch_ingest_disk_size_bytes", "All bytes", labels=["volume", "disk"])
        for volume, folder in self._folders.items():
            try:
                usage, there = shutil.disk_usage(existing(folder)), existing(folder).resolve()
            except OSError:
                continue
            mount = next(path for path in (there, *there.parents) if path.is_mount() or path == path.parent)
            for gauge, count in ((free, usage.free), (size, usage.total)):
                gauge.add_metric([volume, f"{socket.gethostname()}:{mount}"], count)
        yield free
        yield size


def existing(folder: Path) -> Path:
    """Return the folder itself, absolute, or the nearest above it that is there already."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
