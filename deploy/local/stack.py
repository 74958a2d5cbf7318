"""The whole stack on one host: broker, topics, deploy, TorchServe, memory, updater, detector, Prometheus.

Everything that it makes lies below one folder: `run/` with the state and the logs, `stack.env` with
the settings that reach it, `stack.json` with the supervisord that keeps its processes alive. `cache/`
outlives it.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, Self

import psutil
from kafka.errors import KafkaError
from rich.console import Console

from deploy.layouts import all_topics
from deploy.local import prometheus
from deploy.local.broker import CACHE, start_broker
from deploy.local.processes import (
    Daemon,
    PortTakenError,
    StackError,
    answers,
    claim_port,
    free_port,
    port_is_free,
    socket_folder,
    wait_until,
)
from deploy.local.record import (
    Ports,
    StackRecord,
    free_ports,
    stack_settings,
    write_environment,
    write_record,
)
from deploy.local.supervisor import Supervisor, start_supervisor
from deploy.local.torchserve import management_address, model_store, start_torchserve
from ingest.kafka.topics import ensure_topics
from ingest.settings import IngestSettings

_PARTITIONS = 4
# Training shares the cores with everything else here: a thread of it must not spin while it waits
# for one that has no core just now. OpenBLAS's do whatever is set, and took four times the time of one.
_PROCESS = {"PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
_READY_TIMEOUT_S = 90.0
_TRIES = 5

PROMETHEUS_URL = "FORGEWATCH_DEPLOY_PROMETHEUS_URL"
"""The setting that says where Prometheus answers; a stack without one has none."""
HOW_TO_HAVE_PROMETHEUS = "not installed; for alerts: apt-get install prometheus, then `forgewatch up` anew"

Answer = Literal["metrics", "livez", "readyz"]


class Stack:
    """A stack with its state in `home`/run; a context manager that starts it and stops its processes.

    Without `ports` it takes free ones. `tuning` goes before a person's own FORGEWATCH_… variables.
    `settings` are all those that reach it, in full once it is started. It runs without a release: the
    detector then waits for one.
    """

    def __init__(
        self,
        home: Path,
        *,
        ports: Ports | None = None,
        cache: Path = CACHE,
        console: Console | None = None,
        tuning: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home.absolute()
        self.run = self.home / "run"
        # What is written down while it runs: its supervisord, and its settings as KEY=VALUE lines.
        self.record_path, self.environment_path = self.home / "stack.json", self.home / "stack.env"
        self.ports = ports or free_ports()
        self.settings: dict[str, str] = {}
        self._supervisor: Supervisor | None = None
        self._sockets: Path | None = None
        self._cache = cache
        self._console = console or Console(quiet=True)
        self._tuning = tuning or {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def supervisor(self) -> Supervisor:
        assert self._supervisor is not None
        return self._supervisor

    def start(self) -> None:
        """Start every part and wait until each answers; on any error the started ones are stopped again.

        Where another process took one of its ports meanwhile it starts anew, with other ones. Raises
        processes.StackError (its first line says what, the others are the log's last) and
        kafka.errors.KafkaError.
        """
        for _ in range(_TRIES):
            try:
                return self._start()
            except (StackError, KafkaError) as error:
                taken = [port for port in asdict(self.ports).values() if not port_is_free(port)]
                if not taken:
                    raise
                # Where another stack comes up beside this one it wants the other defaults, too.
                self.ports, lost = free_ports(), error
                ports = ", ".join(map(str, taken))
                self._console.print(f"Another process took port {ports} meanwhile: start anew with others.")
        raise lost

    def _start(self) -> None:
        self.run.mkdir(parents=True, exist_ok=True)
        try:
            self._sockets = socket_folder(self.run)
            torchserve = self.run / "torchserve"
            self.settings = stack_settings(
                self.run, self.ports, management_address(self._sockets), model_store(torchserve), self._tuning
            )
            if prometheus.program_path() is not None:  # deploy is told before it runs
                port = self.ports.prometheus
                self.ports = replace(self.ports, prometheus=port if port_is_free(port) else free_port())
                self.settings[PROMETHEUS_URL] = f"http://127.0.0.1:{self.ports.prometheus}"
            self._start_supervisor(self._sockets)
            self._start_broker()
            url = self.settings["FORGEWATCH_DEPLOY_URL"]
            with self._step("deploy", url):
                # Before memory and updater, since it makes tables that they write to.
                await_answer(self._start_room("deploy"), process_address(self.ports.deploy_metrics, "readyz"))
            with self._step("TorchServe", f"http://127.0.0.1:{self.ports.torchserve}"):
                start_torchserve(
                    torchserve,
                    self.ports.torchserve,
                    environment={**os.environ, **self.settings},
                    sockets=self._sockets,
                    launch=self.supervisor.launch,
                )
            memory, updater = self.ports.memory_metrics, self.ports.updater_metrics
            self._start_workers({"memory": memory, "updater": updater}, "readyz")
            # It is ready once there is a release to score by, which may be made later.
            self._start_workers({"detector": self.ports.detector_metrics}, "livez")
            self._require_own_ports()
            self._start_prometheus()
            write_environment(self.environment_path, self.settings)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the processes, the last one started first. The state below `run` stays."""
        if self._supervisor is not None:
            self._supervisor.stop()
            self._supervisor = None
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        self.record_path.unlink(missing_ok=True)
        self.environment_path.unlink(missing_ok=True)

    def _start_supervisor(self, sockets: Path) -> None:
        folder = self.run / "supervisor"

        def write_down(process: Daemon) -> None:
            self._supervisor = Supervisor(process, folder, sockets)
            write_record(self.record_path, StackRecord.of(process, folder, sockets))

        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")}
        start_supervisor(folder, sockets, {**inherited, **self.settings, **_PROCESS}, write_down)

    def _start_broker(self) -> None:
        with self._step("Kafka broker", f"127.0.0.1:{self.ports.broker}") as say:
            start_broker(
                self.run / "broker",
                self.ports.broker,
                self.ports.controller,
                cache=self._cache,
                progress=lambda done, total: say(f"jar {done} of {total}"),
                launch=self.supervisor.launch,
            )
        ingest = IngestSettings(
            bootstrap_servers=self.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"],
            security_protocol="PLAINTEXT",
        )
        ensure_topics(ingest, all_topics(ingest, _PARTITIONS))

    def _require_own_ports(self) -> None:
        # Another's server may have answered in the place of a part that then looks for its port in vain.
        own = {
            connection.laddr.port
            for process in self.supervisor.processes()
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        if lost := set(asdict(self.ports).values()) - own - {self.ports.prometheus}:
            raise PortTakenError(f"port {lost.pop()} on 127.0.0.1 is taken by another process")

    def _start_prometheus(self) -> None:
        """Start it where it is installed; the stack does without it, too."""
        if prometheus.program_path() is None:
            self._console.print(f"  {'Prometheus':<14}{HOW_TO_HAVE_PROMETHEUS}", highlight=False)
            return
        rooms = {
            "detector": self.ports.detector_metrics,
            "memory": self.ports.memory_metrics,
            "updater": self.ports.updater_metrics,
            "deploy": self.ports.deploy_metrics,
        }
        folder, port = self.run / "prometheus", self.ports.prometheus
        try:
            with self._step("Prometheus", f"http://127.0.0.1:{port}"):
                prometheus.start_prometheus(folder, port, rooms, launch=self.supervisor.launch)
        except StackError as error:
            self._console.print(f"  Prometheus does not start, and the stack goes on without it: {error}")
            del self.settings[PROMETHEUS_URL]

    def _start_workers(self, ports: Mapping[str, int], probe: Answer) -> None:
        """Start processes side by side and wait until each answers the probe at its port."""
        rooms = {name: self._start_room(name) for name, port in ports.items() if claim_port(port)}
        for name, port in ports.items():
            with self._step(name, process_address(port, "metrics")):
                await_answer(rooms[name], process_address(port, probe))

    def _start_room(self, name: str) -> Daemon:
        return launch_room(self.supervisor, self.run, name)

    @contextmanager
    def _step(self, name: str, address: str) -> Iterator[Callable[[str], None]]:
        since = time.monotonic()
        with self._console.status(f"{name} starts") as status:
            yield lambda text: status.update(f"{name} starts: {text}")
        self._console.print(f"  {name:<14}{address:<34}{time.monotonic() - since:5.1f} s", highlight=False)


def launch_room(
    supervisor: Supervisor, run: Path, name: str, settings: Mapping[str, str] | None = None
) -> Daemon:
    """Start `python -m NAME`, or start it anew: with the stack's settings, and before them `settings`."""
    folder = run / name
    folder.mkdir(exist_ok=True)
    first = [f"{variable}={value}" for variable, value in (settings or {}).items()]
    # -P: no folder that happens to be named like a package is taken for it.
    command = [*(["env", *first] if first else []), sys.executable, "-P", "-m", name]
    return supervisor.launch(name, command, log=folder / f"{name}.log", folder=folder)


def await_answer(child: Daemon, address: str) -> None:
    """Wait until a process answers at its HTTP address. Raises StackError."""
    wait_until(child, lambda: answers(address), _READY_TIMEOUT_S)


def process_address(port: int | str, path: Answer) -> str:
    """Where a process of this host shows its metrics, and whether it lives or is ready."""
    return f"http://127.0.0.1:{port}/{path}"
