"""TorchServe's client: predictions, and the versions that it has loaded."""

import contextlib
from typing import Self

import httpx

from detector.release.artifact import Artifact
from detector.release.tensors import (
    REQUEST_TYPE,
    ModelOutput,
    Request,
    TensorsError,
    beyond_tolerance,
    conform,
    decode,
    encode,
    read_probe,
)
from detector.serving.shared_request import SHARED_TYPE, SharedRequests, shared_folder
from detector.settings import DetectorSettings

MODEL_NAME = "forgewatch"
RELEASE_HEADER = "x-forgewatch-release"
"""Of each answer that a handler gave: the digest of its release."""
DEADLINE_S = 20.0
"""So long a graph may take for one request, before the handler stops it."""
SCORES_TIMEOUT_S = 30.0
"""The wait for the scores of one request, which may have to wait for another."""
_STUCK_S = 60
"""TorchServe kills a worker that is silent for longer: no operator can be stopped in its middle."""
_READY_TIMEOUT_S = 120.0
"""The wait until a registered release has a ready worker, which loads its graphs."""
_MANAGEMENT_TIMEOUT_S = 10.0


def mar_name(digest: str) -> str:
    """The bare file name of an artifact's archive in the model store."""
    return f"{MODEL_NAME}-{digest}.mar"


class TorchServeError(Exception):
    """TorchServe did not carry out a request."""


class TorchServeUnavailableError(TorchServeError):
    """It did not answer, or answered that it cannot now. Retryable."""


class FailedError(TorchServeUnavailableError):
    """It failed at a request, as where a worker runs out of memory or ends. Retryable."""


class OutlastedError(FailedError):
    """A request outlasts its deadline. Retryable; once the release answers its probe, it is the request."""


class BrokenOffError(TorchServeUnavailableError):
    """The connection ended under a request, as where TorchServe itself does. Retryable."""


class ForeignAnswerError(TorchServeUnavailableError):
    """The answer is not of the release's handler, as where another server has the port. Retryable."""


class VersionMissingError(TorchServeUnavailableError):
    """It does not know the version, as after a restart. Retryable once the version is registered again."""


class TorchServeRefusedError(TorchServeError):
    """It says that the request is wrong. Fatal: the same request stays wrong."""


class RequestTooLargeError(TorchServeRefusedError):
    """A request has more bytes than TorchServe's max_request_size. Fatal for the request as it is."""


class StartError(TorchServeRefusedError):
    """A version's worker process does not come up, or fails at its probe. Fatal for that release."""


class ProbeError(TorchServeRefusedError):
    """A version's output differs from its artifact's probe. Fatal for that release."""


class TorchServe:
    """One TorchServe, over its inference and its management address. Use as a context manager.

    Every method raises TorchServeUnavailableError when the connection fails, nothing answers in time or
    TorchServe answers 5xx, and TorchServeRefusedError when it answers another 4xx than 404.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        """Connect to the addresses of the settings; nothing is sent yet."""
        # trust_env would send loopback traffic through a proxy that the environment names.
        url = settings.torchserve_url
        self._inference = httpx.Client(base_url=url, timeout=SCORES_TIMEOUT_S, trust_env=False)
        self._shared = SharedRequests(shared_folder(settings))
        address = settings.torchserve_management_url
        socket = address.removeprefix("unix:") if address.startswith("unix:") else None
        self._management = httpx.Client(
            base_url=address if socket is None else "http://torchserve",
            transport=httpx.HTTPTransport(uds=socket, trust_env=False),
            timeout=_MANAGEMENT_TIMEOUT_S,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._inference.close()
        self._management.close()

    def predict(self, artifact: Artifact, request: Request) -> ModelOutput:
        """Ask the graph of a release that takes these arrays. The reply is as it declares, or refused."""
        try:
            return self._predict(artifact, request)
        except RequestTooLargeError:
            self.probe(artifact)  # no handler says this: it may be another server's word for everything
            raise

    def _predict(self, artifact: Artifact, request: Request) -> ModelOutput:
        contract = artifact.graphs[artifact.graph_for(request)]
        data = encode(request)
        with self._shared.put(data) as named:
            try:
                reply = self._post_request(artifact, data, named)
            except TorchServeRefusedError as error:
                if named is None:
                    raise
                reply = self._post_request(artifact, data, None)  # refused again where it is wrong itself
                self._shared.give_up(str(error))
        try:
            output = decode(reply.content)
            conform(output, contract.outputs, conform(request, contract.inputs))
        except TensorsError as error:
            raise TorchServeRefusedError(f"version {artifact.version}: {error}") from error
        return output

    def _post_request(self, artifact: Artifact, data: bytes, named: bytes | None) -> httpx.Response:
        return _send(
            self._inference,
            "POST",
            f"/predictions/{MODEL_NAME}/{artifact.version}",
            content=data if named is None else named,
            headers={"content-type": REQUEST_TYPE if named is None else SHARED_TYPE},
            release=artifact.digest,
        )

    def register(self, artifact: Artifact) -> None:
        """Load an artifact whose archive lies in the model store, and wait until a worker is ready.

        Nothing is sent when a worker is ready already. Raises StartError when its process ends before it
        is ready, and TorchServeUnavailableError when it is not ready in time; either way the version is
        taken out again.
        """
        ready = self.versions().get(artifact.version)
        if ready:
            return
        if ready is not None:
            # A worker that TorchServe is restarting, or one that never came up: start afresh.
            self.unregister(artifact.version)
        parameters = {
            "url": mar_name(artifact.digest),
            "model_name": MODEL_NAME,
            "initial_workers": "1",
            "batch_size": "1",
            "response_timeout": str(_STUCK_S),
            # The reply comes once the worker is ready. Asking for the status instead would not tell a
            # slow start from a process that crashes again and again: both say UNLOADING.
            "synchronous": "true",
        }
        try:
            _send(self._management, "POST", "/models", params=parameters, timeout_s=_READY_TIMEOUT_S)
        except TorchServeUnavailableError as error:
            with contextlib.suppress(TorchServeUnavailableError):
                self.unregister(artifact.version)
            if "Failed to start workers" in str(error):
                raise StartError(f"{error}; TorchServe's model log says why") from error
            raise

    def probe(self, artifact: Artifact) -> dict[str, float]:
        """Send each graph of an artifact its own probe; return the worst difference of each output.

        Raises ProbeError when one is beyond its contract's tolerance.
        """
        worst: dict[str, float] = {}
        for graph, contract in artifact.graphs.items():
            at = f"version {artifact.version}: {graph.model}"
            try:
                request, expected = read_probe(artifact.folder / graph.probe, contract)
            except TensorsError as error:
                raise ProbeError(f"{at} has no probe of its contract: {error}") from error
            try:
                apart = contract.differences(self._predict(artifact, request), expected)
            except RequestTooLargeError as error:
                raise ForeignAnswerError(f"{at} cannot even be asked its probe: {error}") from error
            if wrong := beyond_tolerance(apart, contract.tolerance):
                raise ProbeError(f"{at} does not score as it must: {'; '.join(wrong)}")
            worst |= apart
        return worst

    def versions(self, timeout_s: float | None = None) -> dict[str, bool]:
        """Give the registered versions, each with whether a worker of it is ready.

        timeout_s None waits as long for them as for any answer of the management.
        """
        try:
            reply = _send(self._management, "GET", f"/models/{MODEL_NAME}/all", timeout_s=timeout_s)
        except VersionMissingError:
            return {}
        try:
            return {
                model["modelVersion"]: any(worker["status"] == "READY" for worker in model["workers"])
                for model in reply.json()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise ForeignAnswerError(f"no TorchServe lists its models so: {reply.text[:200]!r}") from error

    def set_default(self, version: str) -> None:
        """Let requests that name no version (curl) go to this one."""
        _send(self._management, "PUT", f"/models/{MODEL_NAME}/{version}/set-default")

    def unregister(self, version: str) -> None:
        """Unload a version; nothing happens when it is not loaded. The default goes last, or is refused.

        Its requests under way would wait for ever: only call it when none are.
        """
        try:
            _send(self._management, "DELETE", f"/models/{MODEL_NAME}/{version}")
        except VersionMissingError:
            return


def _send(
    client: httpx.Client,
    method: str,
    path: str,
    content: bytes | None = None,
    headers: dict[str, str] | None = None,
    params: dict[str, str] | None = None,
    timeout_s: float | None = None,
    release: str | None = None,
) -> httpx.Response:
    """Send it; release: digest of the one whose handler is to answer."""
    try:
        reply = client.request(
            method,
            path,
            content=content,
            headers=headers,
            params=params,
            timeout=client.timeout if timeout_s is None else timeout_s,
        )
    except httpx.TransportError as error:
        problem = f"{method} {path}: {type(error).__name__}: {error}"
        if isinstance(error, httpx.ReadTimeout):
            raise OutlastedError(problem) from error
        if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
            raise BrokenOffError(problem) from error
        raise TorchServeUnavailableError(problem) from error
    named = reply.headers.get(RELEASE_HEADER)
    if reply.is_success and named == release:
        return reply
    problem = f"{method} {path}: HTTP {reply.status_code}: {_message(reply)}"
    if reply.status_code == httpx.codes.GATEWAY_TIMEOUT and named is not None:
        raise OutlastedError(problem)
    if reply.is_server_error:
        raise FailedError(problem)
    if reply.status_code == httpx.codes.NOT_FOUND:
        raise VersionMissingError(problem)
    if reply.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        raise RequestTooLargeError(problem)
    if named != release:
        raise ForeignAnswerError(
            f"{problem}: no handler of the release answered. Restart TorchServe, and end others on its port"
        )
    raise TorchServeRefusedError(problem)


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]
