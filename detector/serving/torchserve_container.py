"""`python -m detector.serving.torchserve_container`: TorchServe beside a worker in one pod, until a signal.

It reads the worker's own settings: the port of its inference on the pod's loopback, the folder of its
sockets and the model store, which are volumes of both containers. This process is the container's first, so
it also takes leave of the orphans of workers that ended.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from detector.serving.torchserve_launch import MANAGEMENT_SOCKET, METRICS_SOCKET, prepare
from detector.settings import DetectorSettings
from ingest.process.frame import Process, ProcessFailedError, WrongSettingError, failing_on, run
from ingest.settings import IngestSettings

_HEAP = "-XX:MaxRAMPercentage=25"
"""Of the container's memory; the rest is for the workers, which hold the graphs."""
_FAREWELL_S = 20.0
_POLL_S = 0.5

log = structlog.get_logger()


def work(process: Process) -> None:
    """Run TorchServe until told to stop. Raises ProcessFailedError and WrongSettingError."""
    settings = DetectorSettings()
    port, sockets = inference_port(settings), socket_folder(settings)
    with failing_on(OSError):
        folder = Path(tempfile.gettempdir()) / "torchserve"
        folder.mkdir(exist_ok=True)
        store = settings.model_store_dir.absolute()
        store.mkdir(parents=True, exist_ok=True)
        sockets.mkdir(exist_ok=True)
        for name in (MANAGEMENT_SOCKET, METRICS_SOCKET):
            (sockets / name).unlink(missing_ok=True)  # of a container before this one, which was killed
        command = prepare(
            folder,
            port=port,
            sockets=sockets,
            model_store=store,
            temporary=folder,
            heap=_HEAP,
            model_log=None,
        )
        server = subprocess.Popen(  # noqa: S603 - our own command
            command.arguments, env=command.environment, cwd=folder
        )
    process.started(inference=f"http://127.0.0.1:{port}", sockets=str(sockets), model_store=str(store))
    while not process.stop.wait(_POLL_S):
        bury_orphans(server)
        if server.poll() is not None:
            raise ProcessFailedError(f"TorchServe ended by itself with status {server.returncode}")
    end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """Ask TorchServe to end, wait for it, and kill it where it takes too long."""
    server.terminate()
    until = time.monotonic() + _FAREWELL_S
    while server.poll() is None:
        if time.monotonic() > until:
            log.warning("killed what did not end", after_s=_FAREWELL_S)
            server.kill()
            server.wait()
        bury_orphans(server)
        time.sleep(_POLL_S / 10)


def bury_orphans(server: subprocess.Popen[bytes]) -> None:
    """Take the exit status of every ended child but the server itself, which would stay zombies else."""
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        while (found := os.waitid(os.P_ALL, 0, ended)) and found.si_pid != server.pid:
            os.waitpid(found.si_pid, 0)
    except ChildProcessError:
        return


def inference_port(settings: DetectorSettings) -> int:
    """The port of the inference address. Raises WrongSettingError unless it is on loopback."""
    try:
        address = urlsplit(settings.torchserve_url)
        if address.hostname in ("127.0.0.1", "localhost") and address.port is not None:
            return address.port
    except ValueError:  # what is no port, or no address
        pass
    raise WrongSettingError(
        "FORGEWATCH_DETECTOR_TORCHSERVE_URL",
        f"{settings.torchserve_url}: TorchServe listens on the pod's loopback, http://127.0.0.1:PORT",
    )


def socket_folder(settings: DetectorSettings) -> Path:
    """The folder of the sockets. Raises WrongSettingError unless management is a socket of the right name."""
    address = settings.torchserve_management_url
    path = Path(address.removeprefix("unix:"))
    if not address.startswith("unix:") or path.name != MANAGEMENT_SOCKET or not path.is_absolute():
        raise WrongSettingError(
            "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL",
            f"{address}: in a pod it is unix:/FOLDER/{MANAGEMENT_SOCKET}, in a folder of both containers",
        )
    return path.parent


if __name__ == "__main__":
    sys.exit(run("torchserve", (IngestSettings, DetectorSettings), work))
