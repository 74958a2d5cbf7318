"""A request that need not be answered now: those of a challenger and of a retraction come again."""

from detector.batch import BatchAbandonedError
from detector.release.artifact import Artifact
from detector.release.tensors import ModelOutput, Request
from detector.serving.rollout import Serving
from detector.serving.torchserve import TorchServe, TorchServeUnavailableError


def score_once(torchserve: TorchServe, serving: Serving, artifact: Artifact, request: Request) -> ModelOutput:
    """Ask TorchServe once, and have what does not answer healed. Raises BatchAbandonedError."""
    try:
        return torchserve.predict(artifact, request)
    except TorchServeUnavailableError as error:
        serving.heal(artifact)
        raise BatchAbandonedError(f"TorchServe does not answer: {error}") from error
