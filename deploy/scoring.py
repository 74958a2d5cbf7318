"""Scoring files without Kafka, by the same steps as the stream's."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.client import Client
from deploy.settings import DeploySettings
from detector.artifact import Artifact, ArtifactError
from detector.fetch import FetchError, fetch
from detector.records import Timings, Verdict
from detector.session import Session
from detector.settings import DetectorSettings
from detector.verdicts import Source, build, pooling_for
from ingest.decode import DecodeError
from ingest.records import MediaItem
from ingest.sandbox import Sandbox, SandboxStartError
from ingest.settings import IngestSettings


class ScoringError(Exception):
    """There is nothing to score by: no release, or no sandbox; the text says why. Retryable."""


class NoVerdict(Exception):  # noqa: N818 - it reads as what it says
    """The stream would write a dead letter for this file; the text says why. Fatal for the file."""


class Scorer:
    """One release in this process, and the sandbox that decodes for it."""

    def __init__(self, artifact: Artifact, sandbox: Sandbox, settings: IngestSettings, threads: int) -> None:
        self._artifact = artifact
        self._sandbox = sandbox
        self._settings = settings
        self._session = Session(artifact.folder, threads)
        self._scored = 0

    def score(self, path: Path) -> Verdict:
        """The verdict on one file: as the stream's but for id, position and timings.

        The position is the file's place among those scored here. Raises NoVerdict, and OSError
        where the file cannot be read.
        """
        size = path.stat().st_size
        if size > self._settings.max_fetched_bytes:
            raise NoVerdict(
                f"{path}: too_large: {size} bytes; the limit is {self._settings.max_fetched_bytes}"
            )
        media = path.read_bytes()
        started = time.perf_counter()
        try:
            decoded = self._sandbox.submit(media, self._artifact.manifest.crop_plan).result()
        except DecodeError as error:
            raise NoVerdict(f"{path}: {error.reason}: {error}") from error
        decoded_at = time.perf_counter()
        pooled = pooling_for([decoded])
        scored = self._session.score(pooled.crops, pooled.pooling)
        timings = Timings(decode_s=decoded_at - started, model_s=time.perf_counter() - decoded_at)
        item = MediaItem(
            topic="file",
            partition=0,
            offset=self._scored,
            timestamp_ms=time.time_ns() // 1_000_000,
            source=str(path),
            digest=hashlib.sha256(media).hexdigest(),
            size_bytes=len(media),
        )
        self._scored += 1
        source = Source(f"{item.topic}-{item.partition}-{item.offset}", item, timings)
        return build([source], [decoded], pooled, scored, self._artifact)[0]


@contextmanager
def open_scorer(api: Client) -> Iterator[Scorer]:
    """A scorer of the live release, which is fetched from deploy once and verified at each start.

    Raises ScoringError, and the client's errors.
    """
    deploy, ingest, detector = DeploySettings(), IngestSettings(), DetectorSettings()
    rollout = api.rollout()
    if rollout is None:
        raise ScoringError("no release is live yet: approve one (`forgewatch releases`)")
    where = detector.model_copy(update={"deploy_url": deploy.url, "deploy_token": deploy.token})
    try:
        artifact = fetch(rollout.stable, deploy.cache, where)
    except (FetchError, ArtifactError) as error:
        raise ScoringError(f"the live release cannot be fetched: {error}") from error
    try:
        with Sandbox(ingest) as sandbox:
            yield Scorer(artifact, sandbox, ingest, detector.model_threads)
    except SandboxStartError as error:
        raise ScoringError(f"no decoding process can be started: {error}") from error
