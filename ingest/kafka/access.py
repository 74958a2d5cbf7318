"""Whether a broker lets this process in, and what it refuses there: each told in one line.

To be asked before a kafka-python client is made: that tries a refused address or password again until its
timeout, logs every try, and then only says that it was unable to bootstrap.
"""

import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka.errors import (
    AuthorizationError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

_SETTING = "FORGEWATCH_INGEST_"
_NEEDED = {
    TopicAuthorizationFailedError: ("topic", "Create, Describe, DescribeConfigs, Read and Write"),
    GroupAuthorizationFailedError: ("group", "Read and Describe"),
    TransactionalIdAuthorizationFailedError: ("transactional id", "Write and Describe"),
}


class BrokerRefusedError(KafkaError):  # type: ignore[misc]
    """Fatal until a setting or an ACL changes. The text says in one line what, where and what to do."""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))


def absent(options: Mapping[str, Any], timeout_s: float) -> str | None:
    """Why no bootstrap server accepts a connection; None where one does.

    options are kafka-python's (ingest.settings.kafka_options); timeout_s is for each server.
    """
    problems = []
    for server in options["bootstrap_servers"]:
        problem = _unreachable(server, timeout_s)
        if problem is None:
            return None
        problems.append(f"{server}: {problem}")
    return f"no broker answers ({'; '.join(problems)})"


def require_entry(options: Mapping[str, Any], timeout_s: float) -> None:
    """Connect once, with TLS and SASL as the options say; a broker that is not there or not ready passes.

    options and timeout_s as for `absent`. Raises BrokerRefusedError where no bootstrap server lets this
    client in, and one says that it never will.
    """
    refusals = []
    for server in options["bootstrap_servers"]:
        if _unreachable(server, timeout_s) is not None:
            continue
        refusal = _refusal(server, options, timeout_s)
        if refusal is None:
            return
        refusals.append(refusal)
    if refusals:
        raise BrokerRefusedError("; ".join(refusals))


def barred(options: Mapping[str, Any], timeout_s: float) -> str | None:
    """Why this client cannot get in, be the broker away or against it; None where it can. As for `absent`."""
    if problem := absent(options, timeout_s):
        return problem
    try:
        require_entry(options, timeout_s)
    except BrokerRefusedError as error:
        return str(error)
    return None


def refused(
    error: AuthorizationError, options: Mapping[str, Any], name: str | None = None
) -> BrokerRefusedError:
    """The same error in one line: who lacks which right on what, and where.

    name is that of the topic, group or transactional id; without it, the one that the error carries.
    """
    kind, rights = next((told for type_, told in _NEEDED.items() if isinstance(error, type_)), (None, None))
    who, where = _user(options), ",".join(options["bootstrap_servers"])
    if kind is None:
        return BrokerRefusedError(f"{where}: {who} lacks a right: {error}; grant it (README, Broker)")
    names = name or ", ".join(sorted(_names(error)))
    return BrokerRefusedError(f"{where}: {who} may not use the {kind} {names}; grant it {rights} there")


def _connected(server: str, timeout_s: float) -> socket.socket:
    host, _, port = server.strip().rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)


def _unreachable(server: str, timeout_s: float) -> str | None:
    try:
        _connected(server, timeout_s).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _speaks_tls(server: str, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent and nothing is believed: it only matters that a handshake is answered.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connected(server, timeout_s) as connection, context.wrap_socket(connection):
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

    with _silent(logging.getLogger("kafka")):  # what it would log is what is told here in one line
        try:
            selector.run(connect)
        except (KafkaError, OSError) as failure:
            error = failure
        finally:
            manager.close()
            selector.close()
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


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _user(options: Mapping[str, Any]) -> str:
    user = options.get("sasl_plain_username")
    return f"user {user}" if user else "this client"


def _names(error: AuthorizationError) -> set[str]:
    told = error.args[0] if error.args else ()
    return {told} if isinstance(told, str) else set(map(str, told))
