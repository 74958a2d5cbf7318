"""The API on the rollout that goes on, as Python calls."""

from collections.abc import Mapping

from pydantic import TypeAdapter

from deploy.client.connection import Connection
from deploy.release_records import Release
from deploy.retraction_records import RetractionView
from deploy.rollout_records import Disagreement, RolloutView

_ITEMS = TypeAdapter(list[Disagreement])
_RETRACTIONS = TypeAdapter(list[RetractionView])


class RolloutCalls:
    """Calls about the rollout. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask

    def view(self) -> RolloutView:
        """How it stands."""
        return RolloutView.model_validate_json(self._ask("GET", "/rollouts").content)

    def items(self, champion: str, challenger: str) -> list[Disagreement]:
        """The newest shared items of which the champion said this and the challenger that."""
        said = {"champion": champion, "challenger": challenger}
        return _ITEMS.validate_json(self._ask("GET", "/rollouts/items", params=said).content)

    def retractions(self) -> list[RetractionView]:
        """What is and was taken back."""
        return _RETRACTIONS.validate_json(self._ask("GET", "/retractions").content)

    def turn(self, digest: str, action: str, reason: str) -> Release:
        """Hold it, let it go on, take it back to shadow or give it more time."""
        body = {"digest": digest, "reason": reason}
        answer = self._ask("POST", "/rollouts/turn", body, params={"action": action})
        return Release.model_validate_json(answer.content)

    def waive(self, digest: str, check: str, reason: str) -> Release:
        """Take a check away."""
        body = {"digest": digest, "check": check, "reason": reason}
        return Release.model_validate_json(self._ask("POST", "/rollouts/waive", body).content)

    def judge(self, digest: str, labels: Mapping[str, str]) -> Release:
        """Say what shared items are."""
        body = {"digest": digest, "labels": dict(labels)}
        return Release.model_validate_json(self._ask("POST", "/rollouts/labels", body).content)
