"""What the updater asks of deploy over HTTP: the live release, and to take in a candidate.

deploy may run on another host, so artifacts travel file by file; each is named by the digest of
its manifest, and the manifest names every file's digest, so that nothing has to be trusted.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from updater.records import Candidate
from updater.settings import UpdaterSettings

MANIFEST = "manifest.json"


class DeployError(Exception):
    """Deploy did not do what it was asked."""


class DeployUnavailable(DeployError):  # noqa: N818 - it reads as what it says
    """Deploy cannot be reached, or is in trouble itself; retryable."""


class DeployRefused(DeployError):  # noqa: N818 - it reads as what it says
    """Deploy answered that it will not, or sent bytes that are not what they should be; fatal."""


class DeployClient:
    """A connection to one deploy server; close it, or use it as a context."""

    def __init__(self, settings: UpdaterSettings) -> None:
        token = settings.deploy_token
        actor = {"X-Forgewatch-Actor": "updater"}
        self._http = httpx.Client(
            base_url=settings.deploy_url,
            timeout=settings.deploy_timeout_s,
            headers=actor
            if token is None
            else actor | {"Authorization": f"Bearer {token.get_secret_value()}"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def live_digest(self) -> str | None:
        """Return the digest of the live release, None where nothing is live. Raises DeployError."""
        rollout = self._ask("GET", "/rollout").json()
        return None if rollout is None else str(rollout["stable"])

    def fetch(self, digest: str, folder: Path) -> Path:
        """Bring an artifact into folder/digest, every byte verified, and return that path.

        One that is there already is not fetched again. Raises DeployError.
        """
        final = folder / digest
        if final.is_dir():
            return final
        folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder, prefix=".fetching-"))
        try:
            self._fetch_file(digest, MANIFEST, digest, aside)
            files: dict[str, str] = json.loads((aside / MANIFEST).read_bytes())["files"]
            for name, sha256 in files.items():
                self._fetch_file(digest, name, sha256, aside)
            aside.rename(final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return final

    def put(self, artifact: Path) -> str:
        """Send an artifact's files, the manifest last, so that deploy never has half of one.

        Returns the digest. Sending what is there already does no harm. Raises DeployError.
        """
        manifest = (artifact / MANIFEST).read_bytes()
        digest = hashlib.sha256(manifest).hexdigest()
        for name in sorted(json.loads(manifest)["files"]):
            path = artifact / name
            self._ask("PUT", f"/artifacts/{digest}/{name}", content=_pieces(path), length=path.stat().st_size)
        self._ask("PUT", f"/artifacts/{digest}/{MANIFEST}", content=iter([manifest]), length=len(manifest))
        return digest

    def propose(self, candidate: Candidate) -> None:
        """Ask that a candidate become a release; asking twice does no harm. Raises DeployError."""
        self._ask("POST", "/releases", json_text=candidate.model_dump_json())

    def _fetch_file(self, digest: str, name: str, sha256: str, folder: Path) -> None:
        if Path(name).name != name or name.startswith("."):
            raise DeployRefused(f"the artifact {digest} has a file called {name!r}")
        found = hashlib.sha256()
        try:
            with (
                self._http.stream("GET", f"/artifacts/{digest}/{name}") as answer,
                (folder / name).open("wb") as file,
            ):
                if answer.is_error:
                    answer.read()
                    _raise(answer)
                for piece in answer.iter_bytes():
                    found.update(piece)
                    file.write(piece)
        except httpx.TransportError as error:
            raise DeployUnavailable(f"deploy does not answer: {error}") from error
        if found.hexdigest() != sha256:
            raise DeployRefused(f"{name} of the artifact {digest} came damaged")

    def _ask(
        self,
        method: str,
        path: str,
        *,
        content: Iterator[bytes] | None = None,
        length: int | None = None,
        json_text: str | None = None,
    ) -> httpx.Response:
        headers = {} if length is None else {"Content-Length": str(length)}
        if json_text is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._http.request(
                method, path, content=content if json_text is None else json_text, headers=headers
            )
        except httpx.TransportError as error:
            raise DeployUnavailable(f"deploy does not answer: {error}") from error
        if answer.is_error:
            _raise(answer)
        return answer


def _raise(answer: httpx.Response) -> None:
    what = f"deploy answered {answer.status_code} to {answer.request.method} {answer.request.url.path}"
    passing = answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS
    kind = DeployUnavailable if passing else DeployRefused
    raise kind(f"{what}: {answer.text[:300]}")


def _pieces(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece
