"""The API on the rollout that goes on, as Python calls."""

from collections.abc import Mapping

from deploy.client.connection import Connection
from deploy.release_records import Release
from deploy.retraction_records import RetractionView
from deploy.rollout_records import Disagreement, RolloutView


class RolloutCalls:
    """Calls about the rollout. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._answer = connection.answer

    def view(self) -> RolloutView:
        """How it stands."""
        return self._answer(RolloutView, "GET", "/rollouts")

    def items(self, champion: str, challenger: str) -> list[Disagreement]:
        """The newest shared items of which the champion said this and the challenger that."""
        said = {"champion": champion, "challenger": challenger}
        return self._answer(list[Disagreement], "GET", "/rollouts/items", params=said)

    def retractions(self) -> list[RetractionView]:
        """What is and was taken back."""
        return self._answer(list[RetractionView], "GET", "/retractions")

    def turn(self, digest: str, action: str, reason: str) -> Release:
        """Hold it, let it go on, take it back to shadow or give it more time."""
        body = {"digest": digest, "reason": reason}
        return self._answer(Release, "POST", "/rollouts/turn", body, params={"action": action})

    def waive(self, digest: str, check: str, reason: str, of_source: bool = False) -> Release:
        """Take a check away, or leave a source out."""
        body = {"digest": digest, "check": check, "reason": reason, "of_source": of_source}
        return self._answer(Release, "POST", "/rollouts/waive", body)

    def judge(self, digest: str, labels: Mapping[str, str]) -> Release:
        """Say what shared items are."""
        body = {"digest": digest, "labels": dict(labels)}
        return self._answer(Release, "POST", "/rollouts/labels", body)
