"""The address and credentials of this process's Kafka clients, and the broker's refusals in one line each.

Whether the broker lets it in is asked before a kafka-python client is made. Such a client tries a refused
address or password again until its timeout, logs every try, and then only says that it could not bootstrap.
"""

import errno
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from kafka.cluster import collect_hosts
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import (
    AuthorizationError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from pydantic import SecretStr

from ingest.kafka.record_batches import tolerate_bad_batches
from ingest.settings import IngestSettings

# How long one answer of a broker is waited for: more than a leader's election takes.
REQUEST_TIMEOUT_S = 10.0

# The longest pause before a broker is connected to again, as in Java's client. kafka-python's own is 30 s: a
# broker was back after five, and its worker after 25.
_MOST_BACKOFF_MS = 1000


def kafka_options(settings: IngestSettings) -> dict[str, Any]:
    """Give the connection's keyword arguments for any kafka-python client.

    No client connects without them, so here each consumer of the process is kept reading.
    """
    tolerate_bad_batches(settings.max_record_bytes)
    complete_rejoins()
    logging.getLogger("kafka.net.selector").addFilter(_is_no_race)
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "security_protocol": settings.security_protocol,
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password,
        "ssl_cafile": settings.ssl_cafile,
        "ssl_certfile": settings.ssl_certfile,
        "ssl_keyfile": settings.ssl_keyfile,
        "ssl_password": settings.ssl_password,
        "reconnect_backoff_max_ms": _MOST_BACKOFF_MS,
    }
    # The client takes neither a path nor a secret.
    plain = {n: v.get_secret_value() if isinstance(v, SecretStr) else v for n, v in options.items()}
    return {n: str(v) if isinstance(v, Path) else v for n, v in plain.items() if v is not None}


def _is_no_race(record: logging.LogRecord) -> bool:
    """Leave out a task that ends since its socket was closed meanwhile; kafka-python logs its traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], ValueError))


_finds_reason = ConsumerCoordinator.need_rejoin


def complete_rejoins() -> None:
    """Make every consumer of this process complete each rejoin that it begins; harmless when repeated.

    A member that made the assignment rejoins when the topic's partitions have changed. It knows so by
    comparing them with those of its last assignment, so it finds no reason once it made the new one. A poll
    that ends between that and the broker's answer leaves the rejoin half done: nothing is assigned, no
    heartbeat is sent, the broker puts the member out, and no later poll sees anything to do (kafka-python
    3.0). Java's client had the same fault (KAFKA-9815); here, as there, what was once found stays on record
    until the rejoin is complete.
    """
    ConsumerCoordinator.need_rejoin = _needs_rejoin


def _needs_rejoin(self: Any) -> bool:
    needed = bool(_finds_reason(self))
    if needed:
        self.request_rejoin()
    return needed


@contextmanager
def own_transactional_id(group: str) -> Iterator[str]:
    """Yield GROUP-HOST-NUMBER with the lowest number that no process of this host holds; held until left.

    So it is the same after a restart, and the new producer ends what the one before it left open at once;
    under another id that would stay open, and hold its records back, until the transaction times out. It
    relies on hosts (in a cluster: pods) to have names of their own, and changes with the host's name.

    The number is held by a Linux abstract socket and not by a file: the kernel frees it with the process,
    and services with a folder for temporary files each, or containers on the host's network, share it.
    """
    host = socket.gethostname()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        for number in count():
            name = f"{group}-{host}-{number}"
            try:
                # A digest: names of sockets are shorter than a group's and a host's may be.
                held.bind(f"\0forgewatch.{sha256(name.encode()).hexdigest()}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                break
        yield name


_SETTING = "FORGEWATCH_INGEST_"
_NEEDED = {
    TopicAuthorizationFailedError: ("topic", "Create, Describe, DescribeConfigs, Read and Write"),
    GroupAuthorizationFailedError: ("group", "Read and Describe"),
    TransactionalIdAuthorizationFailedError: ("transactional id", "Write and Describe"),
}


class BrokerRefusedError(KafkaError):  # type: ignore[misc]
    """Fatal until a setting or an ACL changes. The text names problem, place and remedy in one line."""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))


def outage(options: Mapping[str, Any], timeout_s: float) -> str | None:
    """Why no bootstrap server accepts a connection; None where one does.

    options are kafka-python's (ingest.settings.kafka_options); timeout_s is for each server.
    """
    problems = []
    for server in options["bootstrap_servers"]:
        if (problem := _unreachable(server, timeout_s)) is None:
            return None
        problems.append(f"{server}: {problem}")
    return f"no broker answers ({'; '.join(problems)})"


def require_entry(options: Mapping[str, Any], timeout_s: float) -> None:
    """Connect once, with TLS and SASL as the options say; a broker that is not there or not ready passes.

    options and timeout_s as for `outage`. Raises BrokerRefusedError where no bootstrap server lets this
    client in, and one says that it never will.
    """
    refusals = []
    for server in options["bootstrap_servers"]:
        if _unreachable(server, timeout_s) is None:
            if (refusal := _refusal(server, options, timeout_s)) is None:
                return
            refusals.append(refusal)
    if refusals:
        raise BrokerRefusedError("; ".join(refusals))


def auth_problem(options: Mapping[str, Any], timeout_s: float) -> str | None:
    """Why this client cannot get in, be the broker away or against it; None where it can. As for `outage`."""
    if problem := outage(options, timeout_s):
        return problem
    try:
        require_entry(options, timeout_s)
    except BrokerRefusedError as error:
        return str(error)
    return None


def as_refusal(error: AuthorizationError, options: Mapping[str, Any], name: str = "") -> BrokerRefusedError:
    """The same error in one line: principal, missing right, resource and broker.

    name is that of the topic, group or transactional id; without it, the one that the error carries.
    """
    kind, rights = next((needed for type_, needed in _NEEDED.items() if isinstance(error, type_)), ("", ""))
    who, where = _user(options), ",".join(options["bootstrap_servers"])
    if not kind:
        return BrokerRefusedError(f"{where}: {who} lacks a right: {error}; grant it (README, Broker)")
    about = error.args[0] if error.args else ()
    names = name or ", ".join(sorted({about} if isinstance(about, str) else set(map(str, about))))
    return BrokerRefusedError(f"{where}: {who} may not use the {kind} {names}; grant it {rights} there")


def _connect(server: str, timeout_s: float) -> socket.socket:
    ((host, port, _),) = collect_hosts([server])  # as the client reads it: with 9092 where it has no port
    return socket.create_connection((host, port), timeout=timeout_s)


def _unreachable(server: str, timeout_s: float) -> str | None:
    try:
        _connect(server, timeout_s).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _speaks_tls(server: str, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent and nothing is believed: it only matters that a handshake is answered.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connect(server, timeout_s) as connection, context.wrap_socket(connection):
            return True
    except OSError:
        return False


def _refusal(server: str, options: Mapping[str, Any], timeout_s: float) -> str | None:
    selector = NetworkSelector()
    manager = KafkaConnectionManager(selector, **{**options, "bootstrap_servers": [server]})
    connection: Any = None
    error: KafkaError | OSError | None = None

    async def connect() -> None:
        nonlocal connection
        node = manager.cluster.bootstrap_brokers()[0].node_id
        connection = manager.get_connection(node, timeout_ms=timeout_s * 1000)
        await connection

    logger = logging.getLogger("kafka")  # what it would log is what is told here in one line
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        selector.run(connect)
    except (KafkaError, OSError) as failure:
        error = failure
    finally:
        manager.close()
        selector.close()
        logger.setLevel(level)
    if error is None:
        return None
    if isinstance(error, OSError) or "[SSL" in str(error):
        see = f"{_SETTING}SSL_CAFILE, …_CERTFILE, …_KEYFILE and {_SETTING}SECURITY_PROTOCOL"
        return f"{server}: TLS fails: {str(error).removeprefix('KafkaConnectionError: ')}; see {see}"
    # The refusal and the end of the connection come together, and kafka-python may see only the end.
    if connection.sasl_enabled and connection.broker_version_data is not None:
        see = f"{_SETTING}SASL_USERNAME, …_PASSWORD and …_MECHANISM"
        return f"{server}: {_user(options)} is not let in by {options.get('sasl_mechanism')}; see {see}"
    if "SSL" not in str(options.get("security_protocol")) and _speaks_tls(server, timeout_s):
        return f"{server}: the broker wants TLS and this client does not; see {_SETTING}SECURITY_PROTOCOL"
    return None


def _user(options: Mapping[str, Any]) -> str:
    user = options.get("sasl_plain_username")
    return f"user {str(user).partition(':')[0]}" if user else "this client"
