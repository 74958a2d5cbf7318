"""The whole stack on one host: broker, topics, TorchServe, deploy, memory, updater, detector.

Everything that it makes lies below one folder: `run/` with the state and the logs, `stack.env` with
the settings that reach it, `stack.json` with the processes. `cache/` outlives it.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from rich.console import Console

from deploy.local.addresses import Ports, free_ports, stack_settings
from deploy.local.broker import CACHE, start_broker
from deploy.local.processes import Child, alive, start, stop_all, wait_until
from deploy.local.record import ChildRecord, StackRecord, write_environment, write_record
from deploy.local.torchserve import start_torchserve
from deploy.topics import all_topics
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings
from ingest.topics import ensure_topics

_PARTITIONS = 4
# Training shares the cores with everything else here: a thread of it must not spin while it waits
# for one that has no core just now.
_PROCESS = {"PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}
_READY_TIMEOUT_S = 90.0


class Stack:
    """A stack with its state in `home`/run; a context manager that starts it and stops its processes.

    Without `ports` it takes free ones. `settings` are the FORGEWATCH_… variables that reach it, in
    full once it is started. It runs without a release: the detector then waits for one.
    """

    def __init__(
        self, home: Path, *, ports: Ports | None = None, cache: Path = CACHE, console: Console | None = None
    ) -> None:
        self.home = home.absolute()
        self.run = self.home / "run"
        self.ports = ports or free_ports()
        self.settings: dict[str, str] = {}
        self.children: list[Child] = []
        self._cache = cache
        self._console = console or Console(quiet=True)
        self._sockets: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def record_path(self) -> Path:
        """Where the stack's processes are written down while they run."""
        return self.home / "stack.json"

    @property
    def environment_path(self) -> Path:
        """Where the settings are written down while the stack runs, as KEY=VALUE lines."""
        return self.home / "stack.env"

    def start(self) -> None:
        """Start every part and wait until each answers; what was started is stopped again on any error.

        Raises processes.StackError (its first line says what, the others are the log's last) and
        kafka.errors.KafkaError.
        """
        self.run.mkdir(parents=True, exist_ok=True)
        try:
            self._start_servers()
            self._start_rooms()
            write_environment(self.environment_path, self.settings)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the processes, the last one started first. The state below `run` stays."""
        stop_all(self.children)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        self.record_path.unlink(missing_ok=True)
        self.environment_path.unlink(missing_ok=True)
        self.children.clear()

    def dead(self) -> list[Child]:
        """The processes that were started and no longer run."""
        return [child for child in self.children if not alive(child)]

    def _start_servers(self) -> None:
        with self._step("Kafka broker", f"127.0.0.1:{self.ports.broker}") as say:
            start_broker(
                self.run / "broker",
                self.ports.broker,
                self.ports.controller,
                cache=self._cache,
                progress=lambda done, total: say(f"jar {done} of {total}"),
                started=self._add,
            )
        with self._step("TorchServe", f"http://127.0.0.1:{self.ports.torchserve}"):
            server = start_torchserve(
                self.run / "torchserve", self.ports.torchserve, started=self._add_torchserve
            )
        self.settings = stack_settings(self.run, self.ports, server.management, server.model_store)
        ingest = IngestSettings(
            bootstrap_servers=self.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"],
            security_protocol="PLAINTEXT",
        )
        ensure_topics(ingest, all_topics(ingest, DetectorSettings(), _PARTITIONS))

    def _start_rooms(self) -> None:
        url = self.settings["FORGEWATCH_DEPLOY_URL"]
        with self._step("deploy", url):
            # First, since it makes tables that others write to; those come up side by side.
            self._wait(self._start_room("deploy"), f"{url}/healthz")
        metrics = {
            "memory": self.ports.memory_metrics,
            "updater": self.ports.updater_metrics,
            "detector": self.ports.detector_metrics,
        }
        rooms = {name: self._start_room(name) for name in metrics}
        for name, port in metrics.items():
            address = f"http://127.0.0.1:{port}/metrics"
            with self._step(name, address):
                self._wait(rooms[name], address)

    def _start_room(self, name: str) -> Child:
        folder = self.run / name
        folder.mkdir(exist_ok=True)
        # -P: no folder that happens to be named like a package is taken for it.
        child = start(
            name,
            [sys.executable, "-P", "-m", name],
            log=folder / f"{name}.log",
            environment={**os.environ, **self.settings, **_PROCESS},
            folder=folder,
        )
        self._add(child)
        return child

    def _wait(self, child: Child, address: str) -> None:
        def ready() -> bool:
            try:
                return httpx.get(address, timeout=5, trust_env=False).is_success
            except httpx.TransportError:
                return False

        wait_until(child, ready, _READY_TIMEOUT_S)

    def _add_torchserve(self, child: Child, sockets: Path) -> None:
        self._sockets = sockets
        self._add(child)

    def _add(self, child: Child) -> None:
        self.children.append(child)
        records = tuple(ChildRecord.of(started) for started in self.children)
        write_record(self.record_path, StackRecord(children=records, sockets=self._sockets))

    @contextmanager
    def _step(self, name: str, address: str) -> Iterator[Callable[[str], None]]:
        since = time.monotonic()
        with self._console.status(f"{name} starts") as status:
            yield lambda text: status.update(f"{name} starts: {text}")
        self._console.print(f"  {name:<14}{address:<34}{time.monotonic() - since:5.1f} s", highlight=False)
