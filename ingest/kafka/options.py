"""How any client of this process speaks to the broker, and by which names it is known there."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from kafka.coordinator.consumer import ConsumerCoordinator
from pydantic import SecretStr

from ingest.kafka.record_batches import tolerate_bad_batches
from ingest.settings import IngestSettings

REQUEST_TIMEOUT_S = 10.0
"""How long one answer of a broker is waited for: more than a leader's election takes."""


def kafka_options(settings: IngestSettings) -> dict[str, Any]:
    """Give the connection's keyword arguments for any kafka-python client.

    No client connects without them, so here each consumer of the process is kept reading.
    """
    tolerate_bad_batches()
    complete_rejoins()
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "security_protocol": settings.security_protocol,
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": _reveal(settings.sasl_password),
        "ssl_cafile": _name(settings.ssl_cafile),
        "ssl_certfile": _name(settings.ssl_certfile),
        "ssl_keyfile": _name(settings.ssl_keyfile),
        "ssl_password": _reveal(settings.ssl_password),
    }
    return {name: value for name, value in options.items() if value is not None}


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)


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
