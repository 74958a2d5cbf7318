"""The deploy server's process: services opened in order, then the API, on an event loop that is watched."""

import asyncio
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import h11
import uvicorn
from fastapi.concurrency import run_in_threadpool
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from uvicorn.protocols.http.h11_impl import H11Protocol

from deploy.access.guard import refuse_insecure
from deploy.app import create_app
from deploy.record.record import RecordError
from deploy.releases import metrics
from deploy.releases.ledger import LedgerError
from deploy.releases.metrics import AccuracyGauges
from deploy.server.services import Services, ServicesError, open_services
from deploy.settings import DeploySettings
from ingest.process.frame import Process, failing_on
from ingest.process.health import Disks, Heartbeat, serve_health
from memory.crops.object_store import local_folder, require_files
from memory.database import folder_of, require_openable
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

_BEAT_INTERVAL_S = 0.5
MAX_CONNECTIONS = 256
_BACKLOG = 64
"""Taken at once: with those that are open they are fewer than the files that a process may have (1024)."""
_PATIENCE_S = 10.0
_FAREWELL_S = 10
"""Requests that are under way when the process is told to stop have so long to end, seconds."""


def work(process: Process) -> None:
    """Serve the API until told to stop. Raises ProcessFailedError and WrongSettingError."""
    settings = DeploySettings()
    for room in (settings, MemorySettings(), UpdaterSettings()):
        require_openable(f"{room.model_config['env_prefix']}DATABASE_URL", room.database_url)
    require_files("FORGEWATCH_DEPLOY_ARTIFACTS_URL", settings.artifacts_url)
    require_files("FORGEWATCH_MEMORY_CROPS_URL", MemorySettings().crops_url)
    with failing_on(ServicesError, LedgerError, RecordError, OSError), ExitStack() as opened:
        address = opened.enter_context(
            serve_health(
                process.metrics_host,
                settings.metrics_port,
                process.heartbeat,
                lambda: hindrance(server, services),  # not asked before the first beat
                OwnMetrics(),
            )
        )
        services = opened.enter_context(open_services(settings))
        refuse_insecure(settings, services.access)
        metrics.show(services.ledger.events())
        REGISTRY.register(metrics.EvaluationGauges(services.ledger.events, services.evaluations))
        REGISTRY.register(AccuracyGauges(services.ledger.events, services.memory))
        REGISTRY.register(Disks(_folders(settings, MemorySettings())))
        listener = opened.enter_context(_listener(settings.host, settings.port))
        threads: list[AbstractContextManager[object]] = [services.publisher, services.heads]
        threads += [services.controller, services.retractions, services.notices]
        for thread in threads:
            opened.enter_context(thread)
        config = uvicorn.Config(
            create_app(settings, services),
            log_config=None,
            access_log=False,
            server_header=False,
            http=BoundedProtocol,
            backlog=_BACKLOG,
            proxy_headers=False,  # else whoever connects from loopback says which address they come from
            timeout_graceful_shutdown=_FAREWELL_S,
        )
        server = Server(config)
        process.report_started(health=address, api=settings.url, port=listener.getsockname()[1])
        asyncio.run(serve(server, listener, process))


class OwnMetrics(CollectorRegistry):
    """This process's metrics; to try a file loads modules of the detector, which measure nothing here."""

    def collect(self) -> Iterator[Metric]:
        """Yield all but the detector's metrics."""
        return (metric for metric in REGISTRY.collect() if not metric.name.startswith("forgewatch_detector_"))


def hindrance(server: uvicorn.Server, services: Services) -> str | None:
    """Give in one line why the API would not do its work though the loop goes on; None: it would."""
    if not server.started:
        return "the API does not listen yet"
    try:
        services.ledger.events()
    except LedgerError as error:
        return str(error)
    return services.artifacts.hindrance() or services.crops.hindrance()


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol for a connection that a peer cannot keep by saying or reading nothing.

    Within each _PATIENCE_S one that waits for its peer must get on: a request's head, 16 KiB of its body, or
    a byte of the answer taken. Where too many are open, the one that has been silent for longest makes room.
    """

    connections: set["BoundedProtocol"]  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch it."""
        super().connection_made(transport)
        self._received, self._heard_at = 0, self.loop.time()
        self._looked = self._look()
        self._watch = self.loop.call_later(_PATIENCE_S, self._close_idle)
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = (connection for connection in self.connections if connection.waits())
            min(waiting, key=lambda connection: connection._heard_at).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the watch."""
        self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received, self._heard_at = self._received + len(data), self.loop.time()
        super().data_received(data)

    def waits(self) -> bool:
        """Whether its peer is to speak or to read next, and not the server."""
        speaks = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused
        return not self.transport.is_closing() and (speaks or self.transport.get_write_buffer_size() > 0)

    def _look(self) -> tuple[object, ...]:
        unread = self.transport.get_write_buffer_size()
        return self.conn.their_state, self.cycle, self._received // 2**14, unread

    def _close_idle(self) -> None:
        before, self._looked = self._looked, self._look()
        if self.waits() and self._looked == before:
            return self.transport.abort()
        self._watch = self.loop.call_later(_PATIENCE_S, self._close_idle)


class Server(uvicorn.Server):
    """uvicorn's server, in a process whose signals somebody else meets."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the frame."""
        yield


async def serve(server: Server, listener: socket.socket, process: Process) -> None:
    """Answer at the listener, and beat, until told to stop and a short while longer."""
    beating = asyncio.create_task(_beat(process.heartbeat))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        while not serving.done():
            server.should_exit = server.should_exit or process.stop.is_set()
            await asyncio.wait([serving], timeout=_BEAT_INTERVAL_S)
        await serving
    finally:
        beating.cancel()


async def _beat(heartbeat: Heartbeat) -> None:
    # By way of the threads that answer requests: where none of them is ever free, nothing is answered.
    while True:
        await run_in_threadpool(heartbeat.beat)
        await asyncio.sleep(_BEAT_INTERVAL_S)


def _listener(host: str, port: int) -> socket.socket:
    """Listen at an address. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror}") from error


def _folders(settings: DeploySettings, memory: MemorySettings) -> dict[str, Path | None]:
    return {
        "artifacts": local_folder(settings.artifacts_url),
        "database": folder_of(settings.database_url),
        "crops": local_folder(memory.crops_url),
        "tmp": Path(tempfile.gettempdir()),
    }
