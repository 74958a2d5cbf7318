"""Whether a broker is there at all, before kafka-python is asked for more.

kafka-python tries a refused address again until its timeout, logs every try, and leaves the
socket of each to the garbage collector.
"""

import socket
from collections.abc import Mapping
from typing import Any


def absent(options: Mapping[str, Any], timeout_s: float) -> str | None:
    """Why no bootstrap server accepts a connection; None where one does.

    options are kafka-python's (ingest.settings.kafka_options); timeout_s is for each server.
    """
    problems = []
    for server in options["bootstrap_servers"]:
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
            return None
        except (OSError, ValueError) as error:
            problems.append(f"{server}: {getattr(error, 'strerror', None) or error}")
    return f"no broker answers ({'; '.join(problems)})"
