"""How any client of this process speaks to the broker."""

from pathlib import Path
from typing import Any

from pydantic import SecretStr

from ingest.kafka.record_batches import tolerate_bad_batches
from ingest.kafka.rejoin import complete_rejoins
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
