"""Bringing an artifact from deploy to this machine, whole or not at all."""

import shutil
from pathlib import Path

import httpx

from detector.artifact import MANIFEST, Artifact, ArtifactError, load, verify
from detector.settings import DetectorSettings

_TIMEOUT_S = 30.0


class FetchError(Exception):
    """Deploy did not give the artifact. Retryable."""


def fetch(digest: str, cache: Path, settings: DetectorSettings) -> Artifact:
    """Return the artifact in cache/DIGEST, downloaded first where it is missing or damaged there.

    Raises FetchError when deploy cannot be reached or does not have it, and ArtifactError when what
    it has is not what the digest says.
    """
    folder = cache / digest
    try:
        return verify(folder, digest)
    except ArtifactError:
        shutil.rmtree(folder, ignore_errors=True)
    aside = cache / f"{digest}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    token = settings.deploy_token
    headers = {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}
    with httpx.Client(base_url=settings.deploy_url, headers=headers, timeout=_TIMEOUT_S) as client:
        (aside / MANIFEST).write_bytes(_get(client, digest, MANIFEST))
        # load() refuses a manifest whose file names would leave the folder, before any is used here.
        for name in load(aside).manifest.files:
            (aside / name).write_bytes(_get(client, digest, name))
    verify(aside, digest)
    aside.rename(folder)
    return verify(folder, digest)


def _get(client: httpx.Client, digest: str, name: str) -> bytes:
    path = f"/artifacts/{digest}/{name}"
    try:
        reply = client.get(path)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        raise FetchError(f"{client.base_url}{path}: {error}") from error
    return reply.content
