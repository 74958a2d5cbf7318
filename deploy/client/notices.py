"""The API on notices, as Python calls."""

from deploy.client.connection import Connection
from deploy.notice_records import WebhookState


class NoticeCalls:
    """Calls about webhooks. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._ask, self._answer = connection.ask, connection.answer

    def webhooks(self) -> list[WebhookState]:
        """How each webhook stands."""
        return self._answer(list[WebhookState], "GET", "/notices")

    def test(self) -> None:
        """Have a notice sent to every webhook."""
        self._ask("POST", "/notices/test")
