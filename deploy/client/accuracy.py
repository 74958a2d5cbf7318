"""The API on how accurate verdicts are, as Python calls."""

from deploy.accuracy_records import AccuracyReport, AuditDone, AuditItem
from deploy.client.connection import Connection


class AccuracyCalls:
    """Calls about accuracy. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._answer = connection.answer

    def report(self, days: int, release: str | None = None) -> AccuracyReport:
        """How accurate the verdicts of a release, or the live one, were in the last days."""
        asked = {"days": str(days)} | ({} if release is None else {"release": release})
        return self._answer(AccuracyReport, "GET", "/accuracy", params=asked)

    def waiting(self) -> list[AuditItem]:
        """The drawn verdicts that wait for a label, the oldest first."""
        return self._answer(list[AuditItem], "GET", "/audits")

    def audit(self, item: str, label: str) -> AuditDone:
        """Say what a drawn item is."""
        return self._answer(AuditDone, "POST", "/audits", {"id": item, "label": label})
