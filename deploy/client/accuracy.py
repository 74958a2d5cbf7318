"""The API on how accurate verdicts are, as Python calls."""

from pydantic import TypeAdapter

from deploy.accuracy_records import AccuracyReport, AuditDone, AuditItem
from deploy.client.connection import Connection

_ITEMS = TypeAdapter(list[AuditItem])


class AccuracyCalls:
    """Calls about accuracy. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask

    def report(self, days: int, release: str | None = None) -> AccuracyReport:
        """How accurate the verdicts of a release, or the live one, were in the last days."""
        asked = {"days": str(days)} | ({} if release is None else {"release": release})
        return AccuracyReport.model_validate_json(self._ask("GET", "/accuracy", params=asked).content)

    def waiting(self) -> list[AuditItem]:
        """The drawn verdicts that wait for a label, the oldest first."""
        return _ITEMS.validate_json(self._ask("GET", "/audits").content)

    def audit(self, item: str, label: str) -> AuditDone:
        """Say what a drawn item is."""
        answer = self._ask("POST", "/audits", {"id": item, "label": label})
        return AuditDone.model_validate_json(answer.content)
