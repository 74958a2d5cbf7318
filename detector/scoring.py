"""Asking a release for the scores of a request that was decoded: what fails then is seldom the request."""

from collections.abc import Callable

from detector import metrics
from detector.batch import BatchAbandonedError, RequestFailedError
from detector.records import Reason
from detector.release.artifact import Artifact
from detector.release.tensors import ModelOutput, Request
from detector.serving.rollout import Serving
from detector.serving.torchserve import (
    BrokenOffError,
    FailedError,
    OutlastedError,
    TorchServe,
    TorchServeError,
    TorchServeUnavailableError,
)

_MOST_FAILURES = 5
"""After so many, with a probe that is answered after each, it is the request. A deadline is missed once."""


def score(
    torchserve: TorchServe,
    serving: Serving,
    artifact: Artifact,
    request: Request,
    pause: Callable[[TorchServeUnavailableError], None],
) -> ModelOutput:
    """Ask TorchServe until it answers. pause waits, or raises what ends the asking.

    Raises RequestFailedError where the release fails at this request though it answers its own probe.
    """
    failures = 0
    while True:
        try:
            with metrics.MODEL.time():
                return torchserve.predict(artifact, request)
        except TorchServeUnavailableError as error:
            serving.request_reload(artifact)
            pause(error)
            if isinstance(error, FailedError | BrokenOffError) and answers_probe(torchserve, artifact):
                failures += _MOST_FAILURES if isinstance(error, OutlastedError) else 1
            if failures >= _MOST_FAILURES:
                late = isinstance(error, OutlastedError)
                reason: Reason = "deadline_exceeded" if late else "scoring_failed"
                raise RequestFailedError(reason, error) from error


def leave(error: TorchServeUnavailableError) -> None:
    """Ask no more: a challenger's request need not be answered now. Raises BatchAbandonedError."""
    raise BatchAbandonedError(f"TorchServe does not answer: {error}") from error


def answers_probe(torchserve: TorchServe, artifact: Artifact) -> bool:
    """Whether a release does at its probe what it did not at a request."""
    try:
        torchserve.probe(artifact)
    except TorchServeError:
        return False
    return True
