"""The API on notices, as Python calls."""

from pydantic import TypeAdapter

from deploy.client.connection import Connection
from deploy.notice_records import WebhookState

_STATES = TypeAdapter(list[WebhookState])


class NoticeCalls:
    """Calls about webhooks. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask

    def webhooks(self) -> list[WebhookState]:
        """How each webhook stands."""
        return _STATES.validate_json(self._ask("GET", "/notices").content)

    def test(self) -> None:
        """Have a notice sent to every webhook."""
        self._ask("POST", "/notices/test")
