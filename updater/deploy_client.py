"""The updater's calls of deploy over HTTP: get the live release, propose a candidate.

deploy may run on another host, so artifacts travel file by file; each is named by the digest of
its manifest, and the manifest names every file's digest, so that nothing has to be trusted.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import httpx

from detector.release.artifact import EVALUATION, MANIFEST, SIGNATURE, Artifact
from detector.release.manifest import ArtifactError
from detector.serving.rollout_source import FetchError, fetch
from detector.settings import DetectorSettings
from updater.gate_records import Gate
from updater.records import NOT_LET_IN, Candidate
from updater.settings import UpdaterSettings

_TIMEOUT = httpx.Timeout(30.0, read=120.0)
"""seconds for one answer: deploy writes what it is sent to disk, and tries a release, before it answers"""


class DeployError(Exception):
    """Deploy did not carry out a request."""


class DeployUnavailableError(DeployError):
    """Deploy cannot be reached, or is in trouble itself; retryable."""


class DeployRefusedError(DeployError):
    """Deploy answered that it will not, or sent damaged bytes; fatal."""


def candidate_of(artifact: Artifact, update: int, gates: tuple[Gate, ...]) -> Candidate:
    """Return the proposal of an artifact, which an update's run made; of no run the number is 0."""
    return Candidate(
        digest=artifact.digest,
        evaluation_digest=artifact.manifest.files[EVALUATION],
        parent=artifact.manifest.parent,
        update=update,
        classes=artifact.manifest.classes,
        gates=gates,
    )


class DeployClient:
    """A connection to one deploy server; close it, or use it as a context."""

    def __init__(self, settings: UpdaterSettings) -> None:
        token = settings.deploy_token
        headers = {"X-Forgewatch-Actor": "updater"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        self._as_reader = DetectorSettings(deploy_url=settings.deploy_url, deploy_token=token)
        self._http = httpx.Client(
            base_url=settings.deploy_url,
            timeout=_TIMEOUT,
            trust_env=False,  # the token would go to a proxy that the environment names
            headers=headers,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def live_digest(self) -> str | None:
        """Return the digest of the live release, None where nothing is live. Raises DeployError."""
        rollout = self._ask("GET", "/rollout").json()
        return None if rollout is None else str(rollout["stable"])

    def fetch(self, digest: str, cache: Path) -> Artifact:
        """Bring an artifact into cache/digest, unless it is there, and verify it. Raises DeployError."""
        cache.mkdir(parents=True, exist_ok=True)
        try:
            return fetch(digest, cache, self._as_reader)
        except FetchError as error:
            raise DeployUnavailableError(str(error)) from error
        except ArtifactError as error:
            raise DeployRefusedError(f"deploy's artifact {digest}: {error}") from error

    def put(self, artifact: Artifact) -> None:
        """Send an artifact's files, signature included, the manifest last: deploy never has half of one.

        Sending what is there already does no harm. Raises DeployError.
        """
        signature = [SIGNATURE] if (artifact.folder / SIGNATURE).is_file() else []
        for name in (*sorted(artifact.manifest.files), *signature, MANIFEST):
            path = artifact.folder / name
            headers = {"Content-Length": str(path.stat().st_size)}
            self._ask("PUT", f"/artifacts/{artifact.digest}/{name}", _pieces(path), headers)

    def propose(self, candidate: Candidate) -> None:
        """Ask that a candidate become a release; asking twice does no harm. Raises DeployError."""
        self._ask("POST", "/releases", candidate.model_dump_json(), {"Content-Type": "application/json"})

    def _ask(
        self,
        method: str,
        path: str,
        content: Iterator[bytes] | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise DeployUnavailableError(f"deploy does not answer: {error}") from error
        if answer.is_error:
            _raise(answer)
        return answer


def _raise(answer: httpx.Response) -> None:
    reply = f"deploy answered {answer.status_code} to {answer.request.method} {answer.request.url.path}"
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise DeployUnavailableError(f"{NOT_LET_IN} (HTTP {answer.status_code}): restart with today's")
    passing = answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS
    kind = DeployUnavailableError if passing else DeployRefusedError
    raise kind(f"{reply}: {answer.text[:300]}")


def _pieces(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece
