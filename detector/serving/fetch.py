"""What a worker gets from deploy: the rollout that it stands by, and artifacts, whole or not at all."""

import re
import shutil
from contextlib import suppress
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError

from detector.records import Rollout
from detector.release.artifact import MANIFEST, Artifact, load, verify
from detector.release.manifest import ArtifactError
from detector.settings import DetectorSettings
from ingest.durable import folder_aside

_ROLLOUT: TypeAdapter[Rollout | None] = TypeAdapter(Rollout | None)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLLOUT_TIMEOUT_S = 5.0
_FILE_TIMEOUT_S = 30.0


class FetchError(Exception):
    """Deploy did not give what was asked for. Retryable."""


class NoDigestError(ArtifactError):
    """What should name a release is no SHA-256 in hexadecimal digits."""


def ask_rollout(settings: DetectorSettings) -> Rollout | None:
    """What is to be served by deploy's ledger; None where it has nothing approved. Raises FetchError."""
    with _client(settings, _ROLLOUT_TIMEOUT_S) as client:
        try:
            reply = client.get("/rollout")
            reply.raise_for_status()
            return _ROLLOUT.validate_json(reply.content)
        except (httpx.HTTPError, ValidationError) as error:
            raise FetchError(f"{client.base_url}/rollout: {error}") from error


def fetch(digest: str, cache: Path, settings: DetectorSettings) -> Artifact:
    """Return the artifact in cache/DIGEST, downloaded first where it is missing or damaged there.

    Raises FetchError when deploy cannot be reached or does not have it, ArtifactError when what it has
    is not what the digest says, and OSError.
    """
    folder = _entry(cache, digest)
    try:
        return verify(folder, digest)
    except ArtifactError:
        discard(digest, cache)
    with folder_aside(folder) as aside, _client(settings, _FILE_TIMEOUT_S) as client:
        _download(client, digest, MANIFEST, aside)
        # load() refuses a manifest that names other files than an artifact's, before one is used here.
        for name in load(aside).manifest.files:
            _download(client, digest, name, aside)
        verify(aside, digest)
    return verify(folder, digest)


def discard(digest: str, cache: Path) -> None:
    """Remove an artifact from the cache, if it is there; nothing else is ever removed."""
    with suppress(FileNotFoundError):
        shutil.rmtree(_entry(cache, digest))


def _entry(cache: Path, digest: str) -> Path:
    # A path as a "digest" would lead out of the cache.
    if not _DIGEST.fullmatch(digest):
        raise NoDigestError(f"{digest!r} is no SHA-256 of 64 hexadecimal digits")
    return cache / digest


def _client(settings: DetectorSettings, timeout_s: float) -> httpx.Client:
    token = settings.deploy_token
    headers = {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}
    # trust_env would hand the token to a proxy that the environment names.
    return httpx.Client(base_url=settings.deploy_url, headers=headers, timeout=timeout_s, trust_env=False)


def _download(client: httpx.Client, digest: str, name: str, folder: Path) -> None:
    path = f"/artifacts/{digest}/{name}"
    try:
        with client.stream("GET", path) as reply, (folder / name).open("xb") as file:
            reply.raise_for_status()
            for chunk in reply.iter_bytes():
                file.write(chunk)
    except httpx.HTTPError as error:
        raise FetchError(f"{client.base_url}{path}: {error}") from error
